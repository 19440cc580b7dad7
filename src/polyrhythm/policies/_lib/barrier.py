"""A barrier as a frozen value: who is live, and who waits for the others."""

from dataclasses import dataclass, field

from polyrhythm.core.worker_map import WorkerMap


@dataclass(frozen=True, slots=True)
class Barrier:
    """How many workers are live, and which of them wait.

    >>> barrier = Barrier().join(2).arrive(1)
    >>> barrier.holds(2), barrier.arrive(0).holds(2), barrier.leave(0).holds(2)
    (False, True, True)
    """

    live: int = 0
    waiting: WorkerMap[bool] = field(default_factory=WorkerMap)

    def join(self, workers: int) -> "Barrier":
        return Barrier(self.live + workers, self.waiting)

    def arrive(self, worker: int) -> "Barrier":
        return Barrier(self.live, self.waiting.set(worker, True))

    def leave(self, worker: int) -> "Barrier":
        return Barrier(self.live - 1, self.waiting.remove(worker))

    def open(self) -> "Barrier":
        return Barrier(self.live)

    def holds(self, quota: int) -> bool:
        return bool(self.waiting) and len(self.waiting) >= min(quota, self.live)
