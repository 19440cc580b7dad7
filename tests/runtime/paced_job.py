"""A job in memory whose workers take the time that a script says, on a clock that only they drive."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from polyrhythm.runtime.wire import protocol as control
from tests.runtime.fake_job import FakeJob

Cost = Callable[[int, int], tuple[float, float]]
"""Seconds to compute and to transfer of a worker's step, by its rank and the number of its step, from 0."""


class PacedJob(FakeJob):
    """Steps on the servers arrive when the script says; of those at one time, the lower rank's first.

    Args:
        policy: spec.
        workers: how many there are.
        samples: of the one epoch.
        cost: of each step.
        losses: of the steps of all workers as they arrive, by their number; none: they state no loss.
    """

    def __init__(
        self, policy: str, workers: int, samples: int, cost: Cost, losses: Callable[[int], float] | None = None
    ) -> None:
        self._cost, self._losses = cost, losses
        self._now = 0.0
        self._free: dict[int, float] = {}
        self._steps = Counter[int]()
        self._arrived = 0
        super().__init__(policy, workers, samples, 1, 1, seed=0)

    @property
    def clock(self) -> float:
        return self._now

    def measured(self, rank: int) -> tuple[float, float, float | None]:
        compute_s, transfer_s = self._cost(rank, self._steps[rank] - 1)
        self._arrived += 1
        return compute_s, transfer_s, self._losses(self._arrived) if self._losses else None

    def run(self, events: dict[int, str], limit: int = 100_000) -> None:
        """Let workers act as soon as they can; `events` has no place on this clock."""
        assert not events, "what happens, the script says"
        for _ in range(limit):
            busy = [w for w in self.workers.values() if w.alive and not w.finished]
            if not busy:
                return
            able = [w for w in busy if self._able(w)]
            due = min(((self._due(w), w.rank) for w in able), default=(math.inf, -1))
            alarm_s = min(self.alarms, default=math.inf)
            assert min(due[0], alarm_s) < math.inf, f"deadlock: {self.describe()}"
            self._now = max(self._now, min(due[0], alarm_s))
            if alarm_s < due[0]:
                self._ring()
            else:
                self._act(self.workers[due[1]])
        raise AssertionError(f"no end: {self.describe()}")

    def _due(self, w: Any) -> float:
        """When a worker acts: at the end of the step that it has been told to make, or at once."""
        if w.wants is None and isinstance(w.inbox[0], control.Go):
            if w.rank not in self._free:
                self._free[w.rank] = self._now + sum(self._cost(w.rank, self._steps[w.rank]))
                self._steps[w.rank] += 1
            return self._free[w.rank]
        return self._now

    def _act(self, w: Any) -> None:
        if w.wants is None and isinstance(w.inbox[0], control.Go):
            self._free.pop(w.rank, None)
        super()._act(w)
