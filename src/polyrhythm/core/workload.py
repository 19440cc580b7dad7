"""Which samples the job still has to process: sample ranges on the positions of one shared permutation an epoch.

A sample range is a range of positions; what stands at a position is the driver's business (a seeded permutation of the
data set). A sample range that is given back, because its step was abandoned, is handed out again before anything else,
so every position of every epoch is processed exactly once under every policy.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from polyrhythm.errors import UsageError

UNKNOWN = 2**40
"""Samples of an epoch that ends when the data of its workers do."""


class SampleRange(NamedTuple):
    """Positions ``start`` to ``stop`` (exclusive) of the permutation of an epoch."""

    epoch: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.stop - self.start


def even_steps(samples: int, members: int, batch_size: int, least: int = 1) -> int:
    """Steps until so many samples are taken by members who all make as many: the last one takes the rest.

    A rest of less than a sample for each member, or less than `least`, is no step of its own, unless there is no other.

    >>> [even_steps(samples, members=2, batch_size=3) for samples in (1, 6, 7, 8)]
    [1, 1, 1, 2]
    >>> [even_steps(samples, members=2, batch_size=3, least=2) for samples in (8, 9, 10)]
    [1, 1, 2]
    """
    full, rest = divmod(samples, members * batch_size)
    return full + (rest >= members * min(least, batch_size) or full == 0)


def even_share(samples: int, members: int, batch_size: int, step: int, member: int, least: int = 1) -> int:
    """Samples of one member in one of the `even_steps`: a whole mini-batch, in the last step an equal part; then none.

    >>> [even_share(9, 2, 3, step, member) for step in range(3) for member in range(2)]
    [3, 3, 2, 1, 0, 0]
    """
    last = even_steps(samples, members, batch_size, least) - 1
    if step != last:
        return batch_size if step < last else 0
    share, larger = divmod(samples - last * members * batch_size, members)
    return share + (member < larger)


def divide(samples: int, shares: Sequence[int], least: int = 1) -> tuple[int, ...]:
    """Whole parts of so many samples in proportion to `shares`, at least one each, or two where all shares are two or
    more and there are as many, or `least`, as far as there are enough; ties go to whoever is first.

    >>> divide(16, (3, 1)), divide(6, (2, 1, 1)), divide(5, (60, 1, 1, 1)), divide(6, (60, 2, 2))
    ((12, 4), (3, 2, 1), (2, 1, 1, 1), (2, 2, 2))
    >>> divide(16, (12, 4), least=5), divide(7, (12, 4), least=5)
    ((11, 5), (4, 3))
    """
    total, members = sum(shares), range(len(shares))
    least = max(1, min(max(least, 2 if min(shares) >= 2 else 1), samples // len(shares)))
    parts = [max(least, samples * share // total) for share in shares]
    by_lack = sorted(members, key=lambda member: (parts[member] * total - samples * shares[member], member))
    for member in by_lack[: max(0, samples - sum(parts))]:
        parts[member] += 1
    while (excess := sum(parts) - samples) > 0:  # the least part has been more than somebody's due
        largest = max(members, key=lambda member: (parts[member], -member))
        parts[largest] -= min(excess, parts[largest] - least)
    return tuple(parts)


def divided_at(middle: int, samples: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Whole parts of so many samples in proportion to `shares`, none of which lies on both sides of the middle.

    >>> divided_at(6, 16, (4, 4, 4, 4)), divided_at(10, 16, (12, 4)), divided_at(16, 16, (12, 4))
    ((3, 3, 5, 5), (10, 6), (12, 4))
    """
    if middle == samples:
        return divide(samples, shares)
    cuts = range(max(1, len(shares) - samples + middle), min(len(shares) - 1, middle) + 1)
    first = min(cuts, key=lambda cut: max(middle / sum(shares[:cut]), (samples - middle) / sum(shares[cut:])))
    return (*divide(middle, shares[:first]), *divide(samples - middle, shares[first:]))


def without(ranges: Iterable[SampleRange], taken: Iterable[SampleRange]) -> list[SampleRange]:
    """What is left of ranges of positions.

    >>> without([SampleRange(0, 0, 9)], [SampleRange(0, 2, 4), SampleRange(0, 8, 12), SampleRange(1, 5, 6)])
    [SampleRange(epoch=0, start=0, stop=2), SampleRange(epoch=0, start=4, stop=8)]
    """
    gone, left = sorted(taken), []
    for epoch, start, stop in sorted(ranges):
        for other, first, end in gone:
            if other == epoch and first < stop and end > start:
                if start < first:
                    left.append(SampleRange(epoch, start, first))
                start = max(start, end)
        if start < stop:
            left.append(SampleRange(epoch, start, stop))
    return left


class WorkloadState(NamedTuple):
    """Where a `Workload` stands: its fields, and the pass of each worker if each has a shard of its own."""

    dataset_samples: int
    total_samples: int
    handed_out: int
    returned: tuple[SampleRange, ...]
    passes: tuple[tuple[int, SampleRange], ...] = ()

    @property
    def left(self) -> int:
        """Samples that are not handed out."""
        return self.total_samples - self.handed_out + sum(sample_range.samples for sample_range in self.returned)


@dataclass(slots=True)
class Workload:
    """A queue of mini-batches over as many epochs as `total_samples` needs; the last one may end early.

    Args:
        dataset_samples: samples of the data set; a sample range never crosses the end of an epoch.
        total_samples: samples that the job processes before it ends.
        cut: sizes of the next mini-batches of a round in unequal shares in which an epoch ends.
        least: samples that a mini-batch has if there are enough; see `whole`.

    Example:
        >>> work = Workload(dataset_samples=5, total_samples=8)
        >>> [work.hand_out(3) for _ in range(4)]  # doctest: +NORMALIZE_WHITESPACE
        [SampleRange(epoch=0, start=0, stop=3), SampleRange(epoch=0, start=3, stop=5),
         SampleRange(epoch=1, start=0, stop=3), None]
    """

    dataset_samples: int
    total_samples: int
    handed_out: int = 0
    returned: list[SampleRange] = field(default_factory=list)
    cut: dict[int, int] = field(default_factory=dict)
    least: int = 1

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

    def open(self, read: Sequence[int]) -> None:
        """So many samples were read by each worker before the job was there."""
        for worker, samples in enumerate(read):
            self.gather(samples, worker)

    def hand_out(self, samples: int, worker: int = 0) -> SampleRange | None:
        """The next mini-batch of at most `samples` for a worker, or None when everything is handed out."""
        if self.cut:
            samples = self.cut.pop(worker, samples)
        if self.returned:
            return self._split(heapq.heappop(self.returned), samples)
        epoch, start = divmod(self.handed_out, self.dataset_samples)
        available = min(samples, self.dataset_samples - start, self.total_samples - self.handed_out)
        if available <= 0:
            return None
        self.handed_out += available
        return SampleRange(epoch, start, start + available)

    def whole(self, samples: int, worker: int = 0) -> int:
        """Size of a worker's next mini-batch of so many: it takes a rest that is too small to be one, too.

        >>> work = Workload(dataset_samples=9, total_samples=9, least=2)
        >>> work.whole(4), work.hand_out(4), work.whole(4), work.whole(1)
        (4, SampleRange(epoch=0, start=0, stop=4), 5, 1)
        """
        if self.cut or self.least <= 1:
            return samples
        rest = self._run(worker) - samples
        return samples + rest if 0 < rest < min(self.least, samples) else samples

    def _run(self, worker: int) -> int:
        """Samples that are next for a worker without a gap."""
        del worker
        if self.returned:
            return self.returned[0].samples
        left = self.dataset_samples - self.handed_out % self.dataset_samples
        return min(left, self.total_samples - self.handed_out)

    def share_out(self, workers: Sequence[int], shares: Sequence[int]) -> None:
        """The next mini-batches of these workers are a round, with so many samples each.

        Where an epoch ends in it, it has the samples of a round of equal mini-batches: one of them ends with the epoch.
        """
        rest = self.dataset_samples - self.handed_out % self.dataset_samples
        samples = sum(shares) - -rest % (sum(shares) // len(shares))
        whole = not self.returned and samples <= self.total_samples - self.handed_out
        if whole and rest < sum(shares) and samples - rest <= self.dataset_samples:
            self.cut = dict(zip(workers, divided_at(rest, samples, shares), strict=True))

    def give_back(self, sample_range: SampleRange) -> None:
        """These positions were not processed after all."""
        heapq.heappush(self.returned, sample_range)

    @property
    def left(self) -> int:
        """Samples that are not handed out."""
        left = self.total_samples - self.handed_out
        return left + sum(sample_range.samples for sample_range in self.returned) if self.returned else left

    def gather(self, samples: int, worker: int) -> list[SampleRange]:
        """So many samples for a worker; fewer only if no more are left."""
        gathered = []
        while samples and (sample_range := self.hand_out(samples, worker)):
            gathered.append(sample_range)
            samples -= sample_range.samples
        return gathered

    def drain(self) -> tuple[SampleRange, ...]:
        """Everything that is left, in order; what a synchronous phase does not reach is given back."""
        return tuple(iter(lambda: self.hand_out(self.dataset_samples), None))

    def take(self, sample_ranges: Sequence[SampleRange]) -> list[SampleRange]:
        """Hand out those of these positions that are left; they are returned.

        >>> work = Workload(dataset_samples=5, total_samples=5)
        >>> begun = work.hand_out(2)
        >>> work.take([SampleRange(0, 1, 4)]), work.drain()
        ([SampleRange(epoch=0, start=2, stop=4)], (SampleRange(epoch=0, start=4, stop=5),))
        """
        left = self.drain()
        rest = without(left, sample_ranges)
        for sample_range in rest:
            self.give_back(sample_range)
        return without(left, rest)

    def extend(self, samples: int) -> None:
        """The job goes on for so many more samples, as at the start of an epoch whose end was a meeting point."""
        self.total_samples += samples

    def state(self) -> WorkloadState:
        """Where it stands.

        >>> work = Workload(dataset_samples=5, total_samples=5)
        >>> begun = work.hand_out(3)
        >>> work.give_back(SampleRange(0, 2, 3))
        >>> other = Workload(dataset_samples=5, total_samples=5)
        >>> other.go_on(work.state())
        >>> other.drain()
        (SampleRange(epoch=0, start=2, stop=3), SampleRange(epoch=0, start=3, stop=5))
        """
        own = self.dataset_samples, self.total_samples, self.handed_out
        return WorkloadState(*own, tuple(sorted(self.returned)))

    def go_on(self, state: WorkloadState) -> None:
        """Stand where another one of the same data set stood."""
        self.total_samples, self.handed_out = state.total_samples, state.handed_out
        for sample_range in state.returned:
            self.give_back(sample_range)

    def _split(self, sample_range: SampleRange, samples: int) -> SampleRange:
        """At most `samples` of a returned sample range; the rest is given back again."""
        if sample_range.samples <= samples:
            return sample_range
        middle = sample_range.start + samples
        self.give_back(SampleRange(sample_range.epoch, middle, sample_range.stop))
        return SampleRange(sample_range.epoch, sample_range.start, middle)
