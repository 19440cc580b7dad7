"""Who is silent for too long is removed, and nobody whose words have come; in virtual time."""

from types import SimpleNamespace
from typing import Any

from polyrhythm.runtime.coordinator.heartbeats import HangWatch
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.runtime.coordinator.recovery.guarded_job import Time

HANG_AFTER_S, PERIOD_S = 1.0, 0.25


class Watched:
    """A worker, and the two threads of its coordinator: `reading` has the timers of the one that hears it."""

    def __init__(self) -> None:
        self.reading, self.heard_s = Time(), 0.0
        self.removed = set[int]()
        loop: Any = SimpleNamespace(clock=self.reading.clock, call_from_thread=lambda call: call())
        heartbeats: Any = SimpleNamespace(loop=self.reading, silent_since=self._silent_since, forgive=self._forgive)
        config = JobConfig(job="job", workers=1, hang_after=HANG_AFTER_S, heartbeat_s=PERIOD_S)
        HangWatch(loop, heartbeats, lambda: config, lambda worker, *_: self.removed.add(worker)).begin()

    def _silent_since(self, time_s: float) -> list[int]:
        return [3] if self.heard_s < time_s else []

    def _forgive(self) -> None:
        self.heard_s = self.reading.now_s


def test_who_is_silent_is_removed() -> None:
    job = Watched()
    job.reading.run(HANG_AFTER_S)
    assert job.removed == set()
    job.reading.run(HANG_AFTER_S + 2 * PERIOD_S)
    assert job.removed == {3}


def test_nobody_is_removed_who_was_not_read() -> None:
    """The thread that reads gets no turn for long: it looks when it has read what has come, and is patient then."""
    job = Watched()
    job.reading.run(PERIOD_S)
    job.reading.now_s += 3 * HANG_AFTER_S
    job.reading.run(job.reading.now_s + PERIOD_S)
    assert job.removed == set()
    job.reading.run(job.reading.now_s + HANG_AFTER_S + PERIOD_S)
    assert job.removed == {3}
