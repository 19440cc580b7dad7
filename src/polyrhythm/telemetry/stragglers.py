"""Who is late at the synchronization point, by how much, and whether for a while, in turns or always.

A worker's time to that point is what it computes and transfers in a step; what it waits there is counted apart, because
a barrier makes everyone as slow as the slowest. Running totals and one window a worker are all that is kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from polyrhythm.core import Report
from polyrhythm.policies._lib.detector import Detector, WindowLimits

StragglerKind = Literal["", "transient", "rotating", "persistent"]
"""Never late for long; late for a while; late in turns with others, so that mostly somebody is; late most of the time.
"""

HORIZON = 50
"""Windows over which shares are averaged; older ones fade out."""

QUIET_S = 10.0
"""Between two lines about one worker, at least: who is late now and then is not worth more of them."""

MOSTLY = 0.5
"""Share of the windows that counts as most of the time."""


class Lateness(msgspec.Struct, frozen=True):
    """How one worker arrives; seconds are means over its steps.

    Attributes:
        steps: its steps that count.
        compute_s: to the synchronization point.
        transfer_s: to the synchronization point.
        wait_s: at the synchronization point, for others.
        relative: latest window over the median of the workers' latest windows; None before there is one of each.
        late: whether it is late now.
        late_share: share of its recent windows in which it was.
        spells: how often it became late.
        kind: see `StragglerKind`.
    """

    steps: int
    compute_s: float
    transfer_s: float
    wait_s: float
    relative: float | None = None
    late: bool = False
    late_share: float = 0.0
    spells: int = 0
    kind: StragglerKind = ""


@dataclass(slots=True)
class Totals:
    """Running totals of one worker."""

    since_s: float
    steps: int = 0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    window_steps: int = 0
    window_s: float = 0.0
    mean_s: float | None = None
    windows: int = 0
    late: bool = False
    streak: int = 0
    late_share: float = 0.0
    spells: int = 0
    samples: int = 0
    told_late: bool = False
    told_s: float = -QUIET_S


@dataclass(slots=True)
class Stragglers:
    """Follows the reports of a job.

    Args:
        detector: who counts as late.
        tell: called with one line when somebody becomes late, or is not any more.
        least_s: seconds of a step by which one must be later than the median; less is noise of a real machine.

    Example:
        >>> from polyrhythm.core import Report
        >>> view = Stragglers(Detector(window=1, patience=1), tell=print)
        >>> for worker in range(3):
        ...     view.join(worker, 0.0)
        >>> for worker, step_s in ((0, 1.0), (1, 1.0), (2, 3.0), (2, 3.0)):
        ...     view.report(Report(worker, 1, 3.0, step_s=step_s))
        worker 2 is late: 3.0x the median (3 s to compute, 0 s to transfer, a step)
    """

    detector: Detector = field(default_factory=lambda: Detector(window=10))
    tell: Callable[[str], None] | None = None
    records: dict[int, Totals] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    limits: WindowLimits = field(default_factory=WindowLimits)
    due: int = 0
    least_s: float = 0.0

    def join(self, worker: int, time_s: float) -> None:
        """A worker is live, and waits from now on."""
        self.live.add(worker)
        self.records.setdefault(worker, Totals(time_s)).since_s = time_s

    def stand(self, workers: Iterable[int], time_s: float) -> None:
        """Live workers begin anew, as after the end of an epoch; what they did until now is no wait."""
        for worker in workers:
            self.records[worker].since_s = time_s

    def leave(self, worker: int) -> None:
        """A worker is gone."""
        self.live.discard(worker)
        record = self.records.get(worker)
        if record is not None:
            record.window_steps, record.window_s, record.mean_s, record.streak, record.late = 0, 0.0, None, 0, False

    def report(self, report: Report) -> None:
        """A step is complete."""
        record = self.records.get(report.worker)
        if record is None:
            return
        arrival_s = report.step_s + report.transfer_s
        record.steps += 1
        record.compute_s += report.step_s
        record.transfer_s += report.transfer_s
        record.wait_s += report.wait_s or max(0.0, report.time_s - record.since_s - arrival_s)
        record.since_s = report.time_s
        smaller, record.samples = report.samples < record.samples, report.samples
        if smaller:
            return  # the rest of an epoch, quicker than other mini-batches, or the first step of a smaller share
        record.window_steps += 1
        record.window_s += arrival_s
        if record.window_steps >= self.detector.window:
            self._judge(report.worker, record, report.time_s)

    def arrivals(self) -> dict[int, Lateness]:
        """How each worker arrives, in order of their numbers."""
        return {worker: self._arrival(record) for worker, record in sorted(self.records.items()) if record.steps}

    def _judge(self, worker: int, record: Totals, time_s: float) -> None:
        record.mean_s = record.window_s / record.window_steps
        record.window_steps, record.window_s = 0, 0.0
        self.due -= 1
        if self.due < 0:
            means = [mean_s for w in self.live if (mean_s := self.records[w].mean_s) is not None]
            if len(means) == len(self.live):
                self.limits, self.due = self.detector.limits(means), len(means)
        above_s = record.mean_s - self.limits.median_s
        judged_s = record.mean_s if above_s >= self.least_s else min(record.mean_s, self.limits.median_s)
        late, record.streak = self.detector.verdict(record.late, record.streak, judged_s, self.limits)
        record.windows += 1
        record.late_share += (late - record.late_share) / min(record.windows, HORIZON)
        if late != record.late:
            record.late = late
            record.spells += late
        if self.tell is not None and late != record.told_late and time_s >= record.told_s + QUIET_S:
            record.told_late, record.told_s = late, time_s
            self.tell(self._line(worker, record))

    def _line(self, worker: int, record: Totals) -> str:
        arrival = self._arrival(record)
        if not record.late:
            return f"worker {worker} keeps up again"
        kind = f", {arrival.kind}" if record.spells > 1 else ""
        return (
            f"worker {worker} is late{kind}: {arrival.relative:.1f}x the median "
            f"({arrival.compute_s:.3g} s to compute, {arrival.transfer_s:.3g} s to transfer, a step)"
        )

    def _arrival(self, record: Totals) -> Lateness:
        steps = record.steps
        relative = record.mean_s / self.limits.median_s if record.mean_s and 0 < self.limits.median_s < 1e9 else None
        means = record.compute_s / steps, record.transfer_s / steps, record.wait_s / steps
        return Lateness(steps, *means, relative, record.late, record.late_share, record.spells, self._kind(record))

    def _kind(self, record: Totals) -> StragglerKind:
        if not record.spells:
            return ""
        if record.late_share >= MOSTLY:
            return "persistent"
        others = [other for other in self.records.values() if other.spells and other.late_share < MOSTLY]
        in_turns = len(others) > 1 and sum(other.late_share for other in others) >= MOSTLY
        return "rotating" if in_turns else "transient"
