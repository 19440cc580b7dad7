"""Who computed, transferred and waited, as far back as the page shows it: a frame each time somebody has looked.

A worker's steps between two looks become one stretch, from its step that was latest at the first look to that of the
second, with the shares of its time. So steps of a minute and of a millisecond are shown by the same means, and a job
with many short steps costs no more than one with few.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from polyrhythm.live.model import NOTHING, JobView, WorkerView, view_of
from polyrhythm.runtime.wire.control_protocol import JobEvent, Status, WorkerStatus
from polyrhythm.telemetry.stragglers import Lateness

KEPT_FRAMES = 300
"""Looks that are remembered: two and a half minutes of two a second."""

KEPT_EVENTS = 100
"""Events that are shown."""

WINDOW = 10
"""Looks between the two that speeds are told from, so that they do not jump."""


class Stretch(NamedTuple):
    """One worker between two moments of the job's clock; what is neither computed nor transferred was waited for."""

    rank: int
    from_s: float
    to_s: float
    compute: float
    transfer: float


class Frame(msgspec.Struct, frozen=True):
    """What one look adds to curves and history; numbers count from 1."""

    number: int
    time_s: float
    policy: str
    samples_per_s: float
    loss: float | None
    staleness: float | None
    lssr: float | None
    figures: dict[str, float]
    stretches: tuple[Stretch, ...]


class JobHistory:
    """All looks at one job.

    Example:
        >>> history = JobHistory()
        >>> _ = history.see(Status("asp", 1, 0, (0,), 0, 0, 0, 0, {}, time_s=1.0))
        >>> _ = history.see(Status("asp", 1, 0, (0,), 50, 0, 0, 0, {}, time_s=2.0))
        >>> history.view.samples_per_s, [frame.number for frame in history.frames]
        (50.0, [1, 2])
    """

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque(maxlen=KEPT_FRAMES)
        self.statuses: deque[Status] = deque(maxlen=WINDOW + 1)
        self.events: deque[JobEvent] = deque(maxlen=KEPT_EVENTS)
        self.view: JobView | None = None
        self._workers: dict[int, WorkerView] = {}
        self._number = 0

    @property
    def last_event(self) -> int:
        return self.events[-1].number if self.events else 0

    def see(self, status: Status) -> tuple[JobEvent, ...]:
        """The job was like this; returns the events that are new."""
        new = tuple(event for event in status.events if event.number > self.last_event)
        self.events.extend(new)
        latest = self.statuses[-1] if self.statuses else None
        if latest is not None and (status.time_s < latest.time_s or not latest.phase):
            self.statuses.clear()  # the job's clock starts with its first phase
            latest = None
        self.statuses.append(status)
        earliest = self.statuses[0] if len(self.statuses) > 1 else None
        self.view = view = self._with_workers(view_of(status, earliest, tuple(self.events)), new)
        if not status.phase:
            return new
        self._number += 1
        stretches = stretches_of(status, latest) if latest else ()
        figures = view.samples_per_s, view.loss, view.staleness, view.lssr, view.figures
        self.frames.append(Frame(self._number, status.time_s, status.policy, *figures, stretches))
        return new

    def _with_workers(self, view: JobView, new: tuple[JobEvent, ...]) -> JobView:
        """At the end all have left: those are shown who have worked until then, as they were last."""
        for event in new:
            if event.kind in ("death", "left") and event.rank is not None:
                self._workers.pop(event.rank, None)
        self._workers |= {worker.rank: worker for worker in view.workers}
        if not view.ended:
            return view
        last = [msgspec.structs.replace(worker, activity="at the end") for _, worker in sorted(self._workers.items())]
        return msgspec.structs.replace(view, workers=tuple(last))

    def end(self, reason: str) -> None:
        """Nobody answers any more."""
        if self.view is not None and not self.view.ended:
            self.view = msgspec.structs.replace(self.view, ended=reason)

    def after(self, number: int) -> list[Frame]:
        return [frame for frame in self.frames if frame.number > number]


def stretches_of(now: Status, before: Status) -> tuple[Stretch, ...]:
    """What each worker has done from its latest step at `before` to that of `now`; none if it has made no other."""
    earlier = {worker.rank: worker for worker in before.workers}
    found = (stretch(worker, earlier.get(worker.rank), now, before) for worker in now.workers)
    return tuple(each for each in found if each is not None)


def stretch(worker: WorkerStatus, earlier: WorkerStatus | None, now: Status, before: Status) -> Stretch | None:
    done, did = now.arrivals.get(worker.rank, NOTHING), before.arrivals.get(worker.rank, NOTHING)
    if earlier is None or earlier.reported_s is None or worker.reported_s is None or done.steps <= did.steps:
        return None
    from_s, to_s = earlier.reported_s, worker.reported_s
    if to_s <= from_s:
        return None
    compute, transfer = shares(done, did, to_s - from_s)
    return Stretch(worker.rank, round(from_s, 3), round(to_s, 3), round(compute, 3), round(transfer, 3))


def shares(now: Lateness, before: Lateness, elapsed_s: float) -> tuple[float, float]:
    """Of computing and of transfers; together at most 1, as measured times may overlap by a little."""
    compute = (now.compute_s * now.steps - before.compute_s * before.steps) / elapsed_s
    transfer = (now.transfer_s * now.steps - before.transfer_s * before.steps) / elapsed_s
    scale = 1.0 / max(1.0, compute + transfer)
    return max(0.0, compute * scale), max(0.0, transfer * scale)
