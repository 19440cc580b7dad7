"""What a learned policy sees, and what it may choose: the paper's view, and one that looks at phases.

A view turns reports into an **observation**, a list of numbers, whenever a choice is due, and a chosen action into the
policy that is in force until the next choice.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import log, log2
from statistics import fmean, median, median_low
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from polyrhythm.core import Alarm, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.epochs import still_known
from polyrhythm.policies._lib.progress import LossWindow, healthy
from polyrhythm.policies.k_group import KGroup

Observation: TypeAlias = tuple[float, ...]
Signals = TypeVar("Signals")

HISTORY = 10
"""Iterations that the paper's view remembers (H)."""
UNITS = (100.0, 1.0, 0.1, 10.0)
"""What iteration, loss, change of the loss and staleness are counted in; raw, they differ by 10,000."""
SMOOTHING = 0.1
"""Weight of a mini-batch in the running loss."""


@dataclass(frozen=True)
class ByAction(Policy[Barrier]):
    """The paper's framework (RLP, algorithm 1) with one action for ever: each gradient is applied when it arrives.

    Then nobody goes on, or the worker itself ("self"), or everyone who is idle ("all"). "nobody" while everyone is idle
    means all, since nothing would ever happen again.
    """

    action: str

    name: ClassVar[str] = "by-action"
    summary: ClassVar[str] = "one action of RLP"

    def init(self, cluster: Cluster) -> Barrier:
        return Barrier()

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        match event:
            case Report(worker=worker):
                return self.act(state.arrive(worker), worker)
            case Joined(workers=workers):
                return state.join(len(workers)), (Proceed(workers),)
            case Left(worker=worker):
                left = state.leave(worker)
                return (left.open(), (Proceed(tuple(left.waiting)),)) if left.holds(left.live) else (left, ())
            case Alarm():
                return state, ()

    def act(self, barrier: Barrier, worker: int) -> tuple[Barrier, Decisions]:
        if self.action == "all" or barrier.holds(barrier.live):
            return barrier.open(), (Sync((worker,)), Proceed(tuple(barrier.waiting)))
        if self.action == "self":
            return Barrier(barrier.live, barrier.waiting.remove(worker)), (Sync((worker,)), Proceed((worker,)))
        return barrier, (Sync((worker,)),)


class View(ABC, Generic[Signals]):
    """What is seen and what can be chosen.

    Args:
        name: as files of learned policies say it.
        inputs: length of an observation.
        actions: names of what can be chosen.
    """

    name: ClassVar[str]
    inputs: ClassVar[int]
    actions: ClassVar[tuple[str, ...]]

    @abstractmethod
    def init(self) -> Signals: ...

    @abstractmethod
    def hear(self, signals: Signals, event: Event, weight: float = SMOOTHING) -> Signals:
        """`weight` is that of a report's loss in the running one; 1 where it is the loss after the report's update."""

    @abstractmethod
    def observe(self, signals: Signals, closed: LossWindow | None) -> tuple[Signals, Observation | None]:
        """After a report: what is seen if a choice is due. `closed` is the window of losses that it has completed."""

    @abstractmethod
    def choose(self, signals: Signals, action: int) -> tuple[Signals, Policy[Any]]:
        """The policy that an action puts in force."""


@dataclass(frozen=True, slots=True)
class PaperSignals:
    """Iterations so far, running loss, and the latest feature tuples, newest first."""

    count: int = 0
    loss: float | None = None
    history: tuple[Observation, ...] = ((0.0,) * len(UNITS),) * HISTORY


class PaperView(View[PaperSignals]):
    """The state and the actions of the RLP paper, section 3.2, at every report.

    The state is the last H = 10 tuples (n, L(w), L(w') - L(w), l), padded with zeros: the iteration, the loss before
    it, its change, and the gradients that others pushed while this one was computed. L is the running mean of the
    mini-batches' losses, weight 0.1, which a real server has for nothing; or the loss on a probe batch after the
    update, that of the update before being L(w). Each number is counted in `UNITS`.
    """

    name = "paper"
    inputs = HISTORY * len(UNITS)
    actions = ("nobody", "self", "all")

    def init(self) -> PaperSignals:
        return PaperSignals()

    def hear(self, signals: PaperSignals, event: Event, weight: float = SMOOTHING) -> PaperSignals:
        if not isinstance(event, Report) or event.loss is None:
            return signals
        before = event.loss if signals.loss is None else signals.loss
        after = before + weight * (event.loss - before)
        features = (signals.count + 1, before, after - before, event.staleness)
        entry = tuple(value / unit for value, unit in zip(features, UNITS, strict=True))
        return PaperSignals(signals.count + 1, after, (entry, *signals.history[:-1]))

    def observe(self, signals: PaperSignals, closed: LossWindow | None) -> tuple[PaperSignals, Observation | None]:
        """A choice is due at every report."""
        return signals, tuple(value for entry in signals.history for value in entry)

    def choose(self, signals: PaperSignals, action: int) -> tuple[PaperSignals, Policy[Any]]:
        """Nobody, the worker itself, or all who are idle."""
        return signals, ByAction(self.actions[action])


@dataclass(frozen=True, slots=True)
class Past:
    """What the windows so far have shown.

    Args:
        windows: complete ones; first, before: mean loss of the first and the last of them.
        rate, spread: of the last one, per median step.
        k: workers of a group in force.
    """

    windows: int = 0
    first: float = 0.0
    before: float = 0.0
    rate: float = 0.0
    spread: float = 0.0
    k: int = 1


@dataclass(frozen=True, slots=True)
class PhaseSignals:
    """What a phase is described by.

    Args:
        steps: duration of each worker's latest step, also of who has finished its epoch; infinite where none has ended
            yet.
        live: how many are live.
        staleness: sum over the window; reports: their number.
        past: the windows before.
    """

    steps: WorkerMap[float] = field(default_factory=WorkerMap)
    live: int = 0
    staleness: int = 0
    reports: int = 0
    past: Past = Past()

    @property
    def durations(self) -> list[float]:
        """Latest steps of all who are live or have finished their epoch."""
        return [duration for _, duration in self.steps.items()]


class PhaseView(View[PhaseSignals]):
    """Choose K of K-group once a phase, relative to h, the number of healthy workers (see `progress.healthy`).

    Observed, every number bounded: workers; healthy share; how slow the others are; windows so far; the loss relative
    to the first window's, and as such; its rate per median step, its change from window to window, its spread and
    highest point; staleness per worker; K per worker; rate and spread of the window before.
    """

    name = "phase"
    inputs = 14
    actions = ("1", "h/2", "3h/4", "h")
    shares = (0.0, 0.5, 0.75, 1.0)

    def init(self) -> PhaseSignals:
        return PhaseSignals()

    def hear(self, signals: PhaseSignals, event: Event, weight: float = SMOOTHING) -> PhaseSignals:
        match event:
            case Report():
                steps = signals.steps.set(event.worker, event.step_s + event.transfer_s)
                staleness, reports = signals.staleness + event.staleness, signals.reports + 1
                return PhaseSignals(steps, signals.live, staleness, reports, signals.past)
            case Joined(workers=workers):
                steps = still_known(signals.steps, event, signals.live)
                for worker in workers:
                    steps = steps.set(worker, steps.get(worker) or float("inf"))
                return replace(signals, live=signals.live + len(workers), steps=steps)
            case Left():
                steps = still_known(signals.steps, event, signals.live)
                return replace(signals, live=signals.live - 1, steps=steps)
        return signals

    def observe(self, signals: PhaseSignals, closed: LossWindow | None) -> tuple[PhaseSignals, Observation | None]:
        """A choice is due when a window is complete."""
        if closed is None or not closed.level > 0:
            return signals, None
        known, past = [duration for duration in signals.durations if duration < float("inf")], signals.past
        level, rate = closed.level, closed.rate * median(known)
        first, before = past.first or level, past.before or level
        seen = (*self.cluster_part(signals), *self.progress_part(past, closed, rate, first, before))
        after = Past(past.windows + 1, first, level, rate, closed.spread, past.k)
        return PhaseSignals(signals.steps, signals.live, past=after), seen

    def cluster_part(self, signals: PhaseSignals) -> Observation:
        """Workers, healthy share, slowness of the others, staleness and K per worker."""
        durations = signals.durations
        n = len(durations)
        h, middle = healthy(durations), median_low(durations)
        slow = [duration / middle for duration in durations if 1.5 * middle < duration < float("inf")]
        return (
            log2(n) / 4,
            h / n,
            clipped((fmean(slow) - 1) / 4, 0, 2) if slow else 0.0,
            clipped(signals.staleness / max(1, signals.reports) / n, 0, 4),
            min(signals.past.k, n) / n,
        )

    def progress_part(self, past: Past, closed: LossWindow, rate: float, first: float, before: float) -> Observation:
        level = closed.level
        peak = max(loss for _, loss in closed.points)
        return (
            min(log2(past.windows + 1) / 5, 2.0),
            clipped(log(level / first), -4, 2),
            clipped(log(level), -4, 4),
            clipped(10 * rate, -2, 2),
            clipped(log(level / before), -1, 1),
            clipped(closed.spread, 0, 2),
            clipped(peak / level - 1, 0, 4),
            clipped(10 * past.rate, -2, 2),
            clipped(past.spread, 0, 2),
        )

    def choose(self, signals: PhaseSignals, action: int) -> tuple[PhaseSignals, Policy[Any]]:
        """K-group; before anyone has joined, of one."""
        h = healthy(signals.durations) if signals.live else 1
        k = max(1, round(self.shares[action] * h))
        return replace(signals, past=replace(signals.past, k=k)), KGroup(k)


def clipped(value: float, low: float, high: float) -> float:
    """`value` within [low, high].

    >>> clipped(3.0, 0, 1), clipped(-3.0, 0, 1)
    (1.0, 0.0)
    """
    return float(min(max(value, low), high))


VIEWS: dict[str, View[Any]] = {view.name: view for view in (PaperView(), PhaseView())}
