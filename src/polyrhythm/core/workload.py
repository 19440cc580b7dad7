"""Which samples the job still has to process: leases on the positions of one shared permutation an epoch.

A lease is a range of positions; what stands at a position is the shell's business (a seeded permutation of the data
set). A lease that is given back, because its step was abandoned, is handed out again before anything else, so every
position of every epoch is processed exactly once under every policy.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from polyrhythm.errors import UsageError


class Lease(NamedTuple):
    """Positions ``start`` to ``stop`` (exclusive) of the permutation of an epoch."""

    epoch: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.stop - self.start


@dataclass(slots=True)
class Workload:
    """A queue of mini-batches over as many epochs as `total_samples` needs; the last one may end early.

    Args:
        dataset_samples: samples of the data set; a lease never crosses the end of an epoch.
        total_samples: samples that the job processes before it ends.

    Example:
        >>> work = Workload(dataset_samples=5, total_samples=8)
        >>> [work.lease(3) for _ in range(4)]
        [Lease(epoch=0, start=0, stop=3), Lease(epoch=0, start=3, stop=5), Lease(epoch=1, start=0, stop=3), None]
    """

    dataset_samples: int
    total_samples: int
    handed_out: int = 0
    returned: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("dataset_samples", "total_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1 but got {getattr(self, name)}")

    @property
    def shared(self) -> bool:
        """Whether all workers take from one queue, so that it does not matter who takes what."""
        return True

    def attend(self, workers: Iterable[int]) -> None:
        """These workers are there now, and no others; here all share one queue."""

    def join(self, workers: Iterable[int]) -> None:
        """These workers are there too."""

    def leave(self, worker: int) -> None:
        """A worker is gone; what it held is given back one by one."""

    def holds(self, worker: int) -> bool:
        """Whether `lease` has anything for a worker."""
        return self.left > 0

    def lease(self, samples: int, worker: int = 0) -> Lease | None:
        """The next mini-batch of at most `samples` for a worker, or None when everything is handed out."""
        if self.returned:
            return self._split(heapq.heappop(self.returned), samples)
        epoch, start = divmod(self.handed_out, self.dataset_samples)
        available = min(samples, self.dataset_samples - start, self.total_samples - self.handed_out)
        if available <= 0:
            return None
        self.handed_out += available
        return Lease(epoch, start, start + available)

    def give_back(self, lease: Lease) -> None:
        """These positions were not processed after all."""
        heapq.heappush(self.returned, lease)

    @property
    def left(self) -> int:
        """Samples that are not handed out."""
        return self.total_samples - self.handed_out + sum(lease.samples for lease in self.returned)

    def gather(self, samples: int, worker: int) -> list[Lease]:
        """So many samples for a worker; fewer only if no more are left."""
        gathered = []
        while samples and (lease := self.lease(samples, worker)):
            gathered.append(lease)
            samples -= lease.samples
        return gathered

    def drain(self) -> tuple[Lease, ...]:
        """Everything that is left, in order; what a lockstep phase does not reach is given back."""
        return tuple(iter(lambda: self.lease(self.dataset_samples), None))

    def extend(self, samples: int) -> None:
        """The job goes on for so many more samples, as at the start of an epoch whose end was a meeting point."""
        self.total_samples += samples

    def _split(self, lease: Lease, samples: int) -> Lease:
        """At most `samples` of a returned lease; the rest is given back again."""
        if lease.samples <= samples:
            return lease
        middle = lease.start + samples
        self.give_back(Lease(lease.epoch, middle, lease.stop))
        return Lease(lease.epoch, lease.start, middle)
