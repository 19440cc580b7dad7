"""Who is late: a detector of stragglers as a frozen value, fed with reports.

What counts is the time to the synchronization point, computing and transfers, without what a worker waits there: a
barrier makes everyone look as slow as the slowest. A worker's time is averaged over a **window** of its steps; each
window is judged against the latest ones of all live workers. Windows follow one another, or slide by one step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low, pstdev

from polyrhythm.core import Event, Joined, Left, Report
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.epochs import gone

ROBUST_SIGMA = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""

METHODS = ("robust", "sigma")


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Seconds above which a window is slow, and up to which one is healthy again; judged until `due` more windows."""

    slow_s: float = math.inf
    healthy_s: float = math.inf
    median_s: float = math.inf
    due: int = 0


NO_VERDICT = WindowLimits(healthy_s=0.0)
"""Until everyone has a window again: nobody becomes a straggler, and nobody ceases to be one."""


@dataclass(frozen=True, slots=True)
class DetectorState:
    """What a detector knows.

    Args:
        windows: seconds of each worker's steps in its present window.
        means: seconds of a step in the latest complete window of each worker.
        streaks: windows in a row that speak for a change of the verdict.
        stragglers: who is one.
        limits: what windows are judged by.
        sizes: of each worker's mini-batches that count; a smaller one, as at the end of an epoch, does not unless it is
            late all the same.
        smaller: reports of smaller ones since then.
    """

    windows: WorkerMap[tuple[float, ...]] = field(default_factory=WorkerMap)
    means: WorkerMap[float] = field(default_factory=WorkerMap)
    streaks: WorkerMap[int] = field(default_factory=WorkerMap)
    stragglers: WorkerMap[bool] = field(default_factory=WorkerMap)
    limits: WindowLimits = field(default_factory=WindowLimits)
    sizes: WorkerMap[int] = field(default_factory=WorkerMap)
    smaller: WorkerMap[int] = field(default_factory=WorkerMap)

    def forget(self, worker: int) -> "DetectorState":
        return replace(
            self,
            windows=self.windows.remove(worker),
            means=self.means.remove(worker),
            streaks=self.streaks.remove(worker),
            stragglers=self.stragglers.remove(worker),
            sizes=self.sizes.remove(worker),
            smaller=self.smaller.remove(worker),
        )


@dataclass(frozen=True)
class Detector:
    """Judges windows; a verdict changes after `patience` windows in a row that speak for it.

    With m the median (the lower one) of the workers' latest windows and d the median absolute deviation from it, the
    robust method calls a window slow if it is above both ``(1 + floor) * m`` and ``m + deviations * 1.4826 * d``, and
    healthy again if it is below half of that way: above m by at most half as much.

    The paper's method, ``sigma``, calls a window slow if its throughput 1/t is below mean - standard deviation over the
    workers, and healthy if not: among equal workers about 16 % always are slow, and of n workers a single straggler
    sits at -sqrt(n - 1) deviations however slow it is.

    Args:
        method: robust or sigma.
        window: steps of one window.
        patience: windows in a row before a verdict changes.
        floor: how much later than the median anyone must be.
        deviations: how many deviations later.
        sliding: whether every step ends a window of the `window` steps up to it, as in the paper. Windows in a row then
            overlap: a straggler is named within fewer steps, and so is a healthy worker, more often.

    Source: Sync-Switch (Li et al. 2021), section IV-B2: ``method="sigma"`` with ``sliding``. Differs: the defaults.

    Example:
        >>> detector, watch = Detector(window=1, patience=1), DetectorState()
        >>> for worker, step_s in ((0, 1.0), (1, 1.1), (2, 3.0)):
        ...     watch = detector.after(watch, Report(worker, 1, 3.0, step_s=step_s), live=3)
        >>> list(detector.after(watch, Report(2, 2, 6.0, step_s=3.0), live=3).stragglers)
        [2]
    """

    method: str = "robust"
    window: int = 4
    patience: int = 2
    floor: float = 0.25
    deviations: float = 4.0
    sliding: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, window=self.window, patience=self.patience)
        if self.method not in METHODS:
            raise SpecError(f"detector must be robust or sigma but got {self.method!r}")
        if not self.floor > 0:
            raise SpecError(f"floor must be above 0 but got {self.floor}")
        if not self.deviations >= 0:
            raise SpecError(f"deviations must be at least 0 but got {self.deviations}")

    def after(self, watch: DetectorState, event: Event, live: int) -> DetectorState:
        """What is known after an event; `live` workers were compared before it."""
        match event:
            case Report(worker=worker, samples=samples):
                step_s = event.step_s + event.transfer_s
                if step_s <= watch.limits.slow_s or worker not in watch.sizes:  # who is late with less work is late
                    watch = self.sized(watch, worker, samples)
                    if worker in watch.smaller:
                        return watch
                window = (*(watch.windows.get(worker) or ()), step_s)
                if len(window) < self.window:
                    return replace(watch, windows=watch.windows.set(worker, window))
                kept = window[1:] if self.sliding else ()
                watch = replace(watch, windows=watch.windows.set(worker, kept))
                return self.judge(watch, worker, sum(window) / self.window, live)
            case Joined() | Left():
                for other in gone(watch.sizes, event, live):
                    watch = watch.forget(other)
                return watch
            case _:
                return watch

    def sized(self, watch: DetectorState, worker: int, samples: int) -> DetectorState:
        """Smaller mini-batches count from the second window of them on, as in a smaller share or another part of a
        sequence: what matters is when they arrive.
        """
        size, row = watch.sizes.get(worker) or 0, (watch.smaller.get(worker) or 0) + 1
        if samples == size and row == 1:
            return watch
        if samples < size and row <= self.window:
            return replace(watch, smaller=watch.smaller.set(worker, row))
        sizes, smaller = watch.sizes.set(worker, samples), watch.smaller.remove(worker)
        if samples >= size:
            return replace(watch, sizes=sizes, smaller=smaller)
        windows, means = watch.windows.remove(worker), watch.means.remove(worker)
        return replace(watch, windows=windows, means=means, limits=NO_VERDICT, sizes=sizes, smaller=smaller)

    def judge(self, watch: DetectorState, worker: int, mean_s: float, live: int) -> DetectorState:
        means = watch.means.set(worker, mean_s)
        limits = replace(watch.limits, due=watch.limits.due - 1)
        if limits.due < 0 and len(means) >= live:
            limits = self.limits([mean for _, mean in means.items()])
        suspect, streak = self.verdict(worker in watch.stragglers, watch.streaks.get(worker) or 0, mean_s, limits)
        stragglers = watch.stragglers.set(worker, True) if suspect else watch.stragglers.remove(worker)
        streaks = watch.streaks.set(worker, streak)
        return DetectorState(watch.windows, means, streaks, stragglers, limits, watch.sizes, watch.smaller)

    def verdict(self, suspect: bool, streak: int, mean_s: float, limits: WindowLimits) -> tuple[bool, int]:
        """Whether a worker is a straggler after a window, and the windows in a row that speak against that."""
        speaks = mean_s <= limits.healthy_s if suspect else mean_s > limits.slow_s
        streak = streak + 1 if speaks else 0
        return (not suspect, 0) if streak >= self.patience else (suspect, streak)

    def limits(self, means: Sequence[float]) -> WindowLimits:
        """What windows are judged by until every worker has completed another one."""
        middle = median_low(means)
        if self.method == "sigma":
            speeds = [1 / max(mean, 1e-12) for mean in means]
            least = fmean(speeds) - pstdev(speeds)
            # A worker at the limit itself, as one of two always is, is not below it.
            slow_s = 1 / least * (1 + 1e-9) if least > 0 else math.inf
            return WindowLimits(slow_s, slow_s, middle, len(means))
        spread = ROBUST_SIGMA * median_low([abs(mean - middle) for mean in means])
        later = max(self.floor * middle, self.deviations * spread)
        return WindowLimits(middle + later, middle + later / 2, middle, len(means))
