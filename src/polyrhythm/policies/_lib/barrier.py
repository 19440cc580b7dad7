"""A barrier as a frozen value: who is live, and who waits for the others."""

from dataclasses import dataclass, field

from polyrhythm.core.worker_map import WorkerMap


@dataclass(frozen=True, slots=True)
class Barrier:
    """How many workers are live, and which of them wait.

    >>> barrier = Barrier().join(2).arrive(1)
    >>> barrier.holds(2), barrier.arrive(0).holds(2), barrier.leave(0).holds(2)
    (False, True, True)
    >>> barrier.arrive(0).release(2)[1], barrier.release(2) == (barrier, ())
    ((0, 1), True)
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
        return 0 < self.waiting.size >= min(quota, self.live)

    def release(self, quota: int) -> "tuple[Barrier, tuple[int, ...]]":
        """The open barrier and those who waited, once so many or all who are live do; else itself, and nobody."""
        return (Barrier(self.live), tuple(self.waiting)) if self.holds(quota) else (self, ())
