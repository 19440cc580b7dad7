"""Which samples each worker still has to read when every worker has a part of the data set of its own.

An **order** of epoch r is the concatenation of the shards, each shuffled for that epoch; a `SampleRange` names
positions of it, as it does of a permutation that all workers share. So positions of one epoch are handed out once,
whoever reads them. A worker passes through its shard again and again, each pass in the order of the pass's number.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from polyrhythm.core.workload import SampleRange, Workload, WorkloadState, without
from polyrhythm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shards:
    """How an order is cut: shard j has the positions from ``starts[j]`` to ``starts[j + 1]``.

    Worker k reads shard k in every epoch or, if they rotate, shard ``(k + r) % n`` in epoch r.

    Args:
        sizes: samples of each shard, at least 1; one shard a worker.
        rotate: whether the workers move on to the next shard with each epoch.

    Example:
        >>> shards = Shards((3, 2, 2), rotate=True)
        >>> parts = [shards.part(worker, epoch=1) for worker in range(3)]
        >>> parts, shards.owner(SampleRange(1, 3, 5))  # doctest: +NORMALIZE_WHITESPACE
        ([SampleRange(epoch=1, start=3, stop=5), SampleRange(epoch=1, start=5, stop=7),
         SampleRange(epoch=1, start=0, stop=3)], 0)
    """

    sizes: tuple[int, ...]
    rotate: bool = False
    starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError(f"every shard needs a sample but the sizes are {list(self.sizes)}; use fewer workers")
        object.__setattr__(self, "starts", (0, *accumulate(self.sizes)))

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return self.starts[-1]

    def part(self, worker: int, epoch: int) -> SampleRange:
        """Positions that a worker reads in its pass of this number."""
        shard = (worker + epoch) % len(self.sizes) if self.rotate else worker
        return SampleRange(epoch, self.starts[shard], self.starts[shard + 1])

    def shard(self, sample_range: SampleRange) -> int:
        """The shard in which a sample range lies."""
        return bisect_right(self.starts, sample_range.start) - 1

    def owner(self, sample_range: SampleRange) -> int:
        """Whose pass a sample range belongs to."""
        shard = self.shard(sample_range)
        return (shard - sample_range.epoch) % len(self.sizes) if self.rotate else shard


class ShardedWorkload(Workload):
    """A queue of mini-batches for each worker: passes through its own shard, until the job has processed enough.

    What is given back goes to the worker whose pass it belongs to. Of a worker that is absent, others read the pass
    that it is in, each before it begins a later pass of its own: no sample of a pass is lost or read twice, and the
    worker goes on after them if it comes back. A worker may be passes ahead of another: `total_samples` counts what
    all have read.

    Args:
        shards: who reads what.
        total_samples: samples that the job processes before it ends.

    Example:
        >>> work = ShardedWorkload(Shards((3, 2)), total_samples=9)
        >>> work.join([0, 1])
        >>> [work.hand_out(2, worker) for worker in (0, 1, 1)]  # doctest: +NORMALIZE_WHITESPACE
        [SampleRange(epoch=0, start=0, stop=2), SampleRange(epoch=0, start=3, stop=5),
         SampleRange(epoch=1, start=3, stop=5)]
        >>> work.leave(0)
        >>> work.hand_out(2, 1), work.hand_out(2, 1)
        (SampleRange(epoch=0, start=2, stop=3), SampleRange(epoch=1, start=0, stop=2))
    """

    def __init__(self, shards: Shards, total_samples: int) -> None:
        super().__init__(shards.samples, total_samples)
        self.shards = shards
        self._present: set[int] = set()
        self._next = {worker: shards.part(worker, 0) for worker in range(len(shards.sizes))}
        self._back: dict[int, list[SampleRange]] = {worker: [] for worker in self._next}

    @property
    def shared(self) -> bool:
        """Each worker takes from its own shard."""
        return False

    def attend(self, workers: Iterable[int]) -> None:
        """These workers read their own shards from now on, and nobody else."""
        self._present = set(workers)

    def join(self, workers: Iterable[int]) -> None:
        """These workers read their own shards from now on."""
        self._present.update(workers)

    def open(self, read: Sequence[int]) -> None:
        """So many samples of its own shard were read by each worker before the job was there."""
        self.join(self._next)
        super().open(read)

    def leave(self, worker: int) -> None:
        """The others see to its shard until it comes back."""
        self._present.discard(worker)

    def hand_out(self, samples: int, worker: int = 0) -> SampleRange | None:
        """The next mini-batch of at most `samples` for a worker, or None when there is none."""
        back, owner = self._source(worker)
        return self._split(heapq.heappop(back), samples) if back else self._advance(owner, samples)

    def _source(self, worker: int) -> tuple[list[SampleRange], int]:
        """What was given back that is next for a worker; if there is none, whose pass it reads."""
        own, absent = self._back[worker], sorted(self._back.keys() - self._present - {worker})
        others: list[SampleRange] = next((self._back[owner] for owner in absent if self._back[owner]), [])
        behind = (owner for owner in absent if self._next[owner].epoch < self._next[worker].epoch)
        return own or others, next(behind, worker)

    def _run(self, worker: int) -> int:
        """Samples that are next for a worker without a gap."""
        back, owner = self._source(worker)
        left = back[0] if back else self._next[owner]
        return left.samples if back else min(left.samples, self.total_samples - self.handed_out)

    def gather(self, samples: int, worker: int) -> list[SampleRange]:
        """So many samples for a worker: its own and, where these are too few, what others gave back."""
        gathered = super().gather(samples, worker)
        for owner in sorted(self._back):
            samples_left = samples - sum(sample_range.samples for sample_range in gathered)
            if samples_left and self._back[owner]:
                gathered += super().gather(samples_left, owner)
        return gathered

    def give_back(self, sample_range: SampleRange) -> None:
        """These positions were not processed after all."""
        heapq.heappush(self._back[self.shards.owner(sample_range)], sample_range)

    @property
    def left(self) -> int:
        """Samples that are not handed out."""
        back = sum(sample_range.samples for sample_ranges in self._back.values() for sample_range in sample_ranges)
        return self.total_samples - self.handed_out + back

    def drain(self) -> tuple[SampleRange, ...]:
        """Everything that is left, by worker."""
        return tuple(self.gather(self.left, min(self._next)))

    def take(self, sample_ranges: Sequence[SampleRange]) -> list[SampleRange]:
        """Hand out those of these positions that are left; what a pass has before them is given back."""
        for owner in self._next:
            own = [sample_range for sample_range in sample_ranges if self.shards.owner(sample_range) == owner]
            while self._is_before(owner, own) and (passed := self._advance(owner, self.dataset_samples)):
                self.give_back(passed)
        back = [sample_range for sample_ranges in self._back.values() for sample_range in sample_ranges]
        rest = without(back, sample_ranges)
        for sample_ranges_back in self._back.values():
            sample_ranges_back.clear()
        for sample_range in rest:
            self.give_back(sample_range)
        return without(back, rest)

    def _is_before(self, owner: int, sample_ranges: Sequence[SampleRange]) -> bool:
        """Whether a worker's pass has not come to all of these yet."""
        epoch, start, _ = self._next[owner]
        return any((each.epoch, each.stop) > (epoch, start) for each in sample_ranges)

    def state(self) -> WorkloadState:
        """Where it stands."""
        back = sorted(sample_range for sample_ranges in self._back.values() for sample_range in sample_ranges)
        own = self.dataset_samples, self.total_samples, self.handed_out
        return WorkloadState(*own, tuple(back), tuple(self._next.items()))

    def go_on(self, state: WorkloadState) -> None:
        """Stand where another one of the same shards stood."""
        super().go_on(state)
        self._next |= dict(state.passes)

    def _advance(self, owner: int, samples: int) -> SampleRange | None:
        """The next positions of a worker's pass; after its end, the next pass begins."""
        epoch, start, stop = self._next[owner]
        middle = min(start + samples, stop, start + self.total_samples - self.handed_out)
        if middle == start:
            return None
        self.handed_out += middle - start
        self._next[owner] = SampleRange(epoch, middle, stop) if middle < stop else self.shards.part(owner, epoch + 1)
        return SampleRange(epoch, start, middle)
