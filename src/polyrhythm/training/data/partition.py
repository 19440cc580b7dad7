"""Which worker reads which samples: a data set cut into one shard a worker.

| spec | shards of n workers |
|---|---|
| ``shared`` | none: all workers read from one shuffled order |
| ``defdp`` | n equal random chunks; worker k reads chunk k |
| ``seldp`` | the same chunks; in epoch r worker k reads chunk (k + r) mod n, so it sees everything in n epochs |
| ``labels:k`` | every worker has k labels; the samples of a label are divided among those that have it |
| ``sorted`` | sorted by label, n equal pieces in the order of the workers |
| ``shards:k`` | sorted by label, n k equal pieces, of which each worker is dealt k |
| ``dirichlet:a`` | of each label the workers get shares from a symmetric Dirichlet distribution of parameter a |
| ``sizes:w0,w1,...`` | random chunks whose sizes have these ratios |

DefDP and SelDP are those of SelSync (Section III-D), where an epoch of SelDP is n of these; ``shards`` is that of
FedAvg (McMahan et al. 2017), ``dirichlet`` that of Hsu et al. 2019. In every epoch the shards together have every
sample once. They follow from the labels, n and a seed alone; a shard is shuffled anew in each epoch.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrhythm.core.shards import Shards
from polyrhythm.errors import DataError, ScenarioError, did_you_mean

Indices: TypeAlias = "NDArray[np.int64]"
"""Indices of samples."""

FEWEST = 10
"""Samples that a Dirichlet draw leaves every worker, or a tenth of an even share where that is less."""


@dataclass(frozen=True)
class Partition:
    """One shuffled order for all workers; base of the partitions that cut shards."""

    name: ClassVar[str] = "shared"
    rotate: ClassVar[bool] = False
    """Whether worker k reads shard (k + r) mod n in epoch r."""
    takes: ClassVar[str] = ""
    """What stands behind the colon of its spec."""

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """The shard of each worker.

        Raises:
            DataError: if these data cannot be cut so.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DefDP(Partition):
    """Equal random chunks; each worker keeps its own."""

    name: ClassVar[str] = "defdp"

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """Pieces of a permutation; the first ones are larger by one if they cannot be equal."""
        return np.array_split(random.permutation(len(labels)), workers)


@dataclass(frozen=True)
class SelDP(DefDP):
    """Equal random chunks in a circle; each worker starts at its own and moves on with every epoch."""

    name: ClassVar[str] = "seldp"
    rotate: ClassVar[bool] = True


@dataclass(frozen=True)
class Sorted(Partition):
    """Pieces of the data sorted by label: `pieces` for each worker, dealt at random if there are several."""

    pieces: int = 1

    name: ClassVar[str] = "sorted"

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """Within a label, samples stay in their order."""
        pieces = np.array_split(np.argsort(labels, kind="stable"), workers * self.pieces)
        order = np.arange(len(pieces)) if self.name == "sorted" else random.permutation(len(pieces))
        return [np.concatenate([pieces[i] for i in own]) for own in np.array_split(order, workers)]


@dataclass(frozen=True)
class DealtPieces(Sorted):
    """As `Sorted`, with several pieces a worker."""

    name: ClassVar[str] = "shards"
    takes: ClassVar[str] = "the number of pieces a worker, such as shards:2"


@dataclass(frozen=True)
class Labels(Partition):
    """A few labels a worker."""

    count: int = 1

    name: ClassVar[str] = "labels"
    takes: ClassVar[str] = "the number of labels a worker, such as labels:1"

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """Worker k has labels k c to k c + c - 1 of a circle of all labels."""
        kinds = np.unique(labels)
        places = workers * self.count
        if not len(kinds) <= places or self.count > len(kinds):
            raise DataError(
                f"training.partition = 'labels:{self.count}' gives {workers} workers {places} labels of {len(kinds)}; "
                f"give each worker from {-(-len(kinds) // workers)} to {len(kinds)} of them, so that all are read"
            )
        shards: list[list[Indices]] = [[] for _ in range(workers)]
        for position, kind in enumerate(kinds):
            holders = [place // self.count for place in range(position, places, len(kinds))]
            own = random.permutation(np.flatnonzero(labels == kind))
            for worker, part in zip(holders, np.array_split(own, len(holders)), strict=True):
                shards[worker].append(part)
        return [np.concatenate(parts) for parts in shards]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Random shares of every label; the smaller alpha, the more they differ."""

    alpha: float = 1.0

    name: ClassVar[str] = "dirichlet"
    takes: ClassVar[str] = "the parameter of the distribution, such as dirichlet:0.3"

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """A worker that is left with too few samples takes the rest from the largest shard."""
        shards: list[list[Indices]] = [[] for _ in range(workers)]
        for kind in np.unique(labels):
            own = random.permutation(np.flatnonzero(labels == kind))
            shares = random.dirichlet(np.full(workers, self.alpha))
            ends = np.round(np.cumsum(shares)[:-1] * len(own)).astype(np.int64)
            for shard, part in zip(shards, np.split(own, ends), strict=True):
                shard.append(part)
        return topped_up([random.permutation(np.concatenate(parts)) for parts in shards])


@dataclass(frozen=True)
class Sizes(Partition):
    """Random chunks of given ratios."""

    ratios: tuple[float, ...] = (1.0,)

    name: ClassVar[str] = "sizes"
    takes: ClassVar[str] = "one ratio a worker, such as sizes:8,1,1"

    def deal(self, labels: Indices, workers: int, random: np.random.Generator) -> list[Indices]:
        """Pieces of a permutation."""
        if len(self.ratios) != workers:
            raise DataError(f"training.partition = 'sizes' has {len(self.ratios)} ratios for {workers} workers")
        ends = np.round(np.cumsum(self.ratios)[:-1] / sum(self.ratios) * len(labels)).astype(np.int64)
        return topped_up(np.split(random.permutation(len(labels)), ends))


PARTITIONS: dict[str, type[Partition]] = {
    partition.name: partition for partition in (Partition, DefDP, SelDP, Labels, Sorted, DealtPieces, Dirichlet, Sizes)
}


BY_LABEL = (Labels, Sorted, Dirichlet)
"""Partitions that read the labels."""


def parse_partition(spec: str) -> Partition:
    """The partition that a spec names; see the table above.

    Raises:
        ScenarioError: for an unknown name or an impossible value.

    Example:
        >>> parse_partition("dirichlet:0.3"), parse_partition("sizes:2,1").ratios
        (Dirichlet(alpha=0.3), (2.0, 1.0))
    """
    given: Any = spec
    if not isinstance(given, str):
        raise ScenarioError(f"training.partition: a partition is text, as in 'dirichlet:0.3', but got {given!r}")
    name, colon, argument = spec.strip().partition(":")
    if name not in PARTITIONS:
        raise ScenarioError(f"training.partition: unknown partition {name!r}: {did_you_mean(name, PARTITIONS)}")
    partition = PARTITIONS[name]
    if bool(colon) != bool(partition.takes):
        needs = f"needs {partition.takes}" if partition.takes else "takes no value"
        raise ScenarioError(f"training.partition: {name} {needs}, but got {spec!r}")
    return partition(value_of(partition, spec, argument)) if colon else partition()  # type: ignore[call-arg]


def value_of(partition: type[Partition], spec: str, argument: str) -> Any:
    """The positive number, or numbers, that a partition takes."""
    kind = float if partition in (Dirichlet, Sizes) else int
    try:
        values = tuple(kind(part) for part in argument.split(","))
    except ValueError:
        values = ()
    if (
        not values
        or not all(0 < value < float("inf") for value in values)
        or (len(values) > 1 and partition is not Sizes)
    ):
        raise ScenarioError(f"training.partition: {partition.name} needs {partition.takes}, above 0, but got {spec!r}")
    return values if partition is Sizes else values[0]


@dataclass(frozen=True, slots=True)
class Dealt:
    """The shards of a job, and the order in which they are read.

    Args:
        indices: samples of each shard.
        seed: of the shuffles.
        rotate: see `Shards`.

    Example:
        >>> dealt = deal(parse_partition("seldp"), np.zeros(7), workers=3, seed=0)
        >>> dealt.shards
        Shards(sizes=(3, 2, 2), rotate=True, starts=(0, 3, 5, 7))
        >>> sorted(int(i) for worker in range(3) for i in dealt.order(worker, epoch=5))
        [0, 1, 2, 3, 4, 5, 6]
    """

    indices: tuple[Indices, ...]
    seed: int
    rotate: bool = False

    @property
    def shards(self) -> Shards:
        """Sizes, and who reads what."""
        return Shards(tuple(len(shard) for shard in self.indices), self.rotate)

    def order(self, worker: int, epoch: int) -> Indices:
        """What a worker reads in an epoch, in order."""
        return self.shuffled((worker + epoch) % len(self.indices) if self.rotate else worker, epoch)

    def shuffled(self, shard: int, epoch: int) -> Indices:
        """One shard in the order of an epoch."""
        return np.random.default_rng((self.seed, epoch, shard)).permutation(self.indices[shard])


def deal(partition: Partition, labels: Any, workers: int, seed: int) -> Dealt:
    """Cut a data set into one shard a worker.

    Args:
        partition: how; not ``shared``.
        labels: one a sample, anything that numpy takes; only partitions about labels read more than its length.
        workers: number of shards.
        seed: of everything random.

    Raises:
        DataError: if these data cannot be cut so.
    """
    kinds = np.asarray(labels)
    if isinstance(partition, BY_LABEL) and kinds.ndim != 1:
        raise DataError(
            f"training.partition = {partition.name!r} needs one label a sample but these have shape "
            f"{kinds.shape[1:]}; use defdp, seldp or sizes"
        )
    if len(kinds) < workers:
        raise DataError(f"{len(kinds)} samples cannot be dealt to {workers} workers; use fewer workers or more data")
    shards = partition.deal(kinds, workers, np.random.default_rng((seed, workers)))
    return Dealt(tuple(shards), seed, partition.rotate)


def redealt(orders: Sequence[Indices], read: Sequence[int], members: Sequence[int | None]) -> list[Indices]:
    """What is left of an epoch, for other workers: nothing is lost, and nothing is read twice.

    A worker that stays keeps its rest, less an even share for each newcomer; this and the rest of those that have left
    go to those who have least.

    Args:
        orders: what each worker was to read.
        read: how much of it each has read.
        members: for each new worker, which of the old ones it was, or None if it is new.

    Example:
        >>> redealt([np.arange(4), np.arange(4, 8), np.arange(8, 12)], [2, 2, 1], [0, 2])
        [array([2, 3, 6, 7]), array([ 9, 10, 11])]
    """
    rests = [order[count:] for order, count in zip(orders, read, strict=True)]
    newcomers = sum(member is None for member in members)
    kept = [rests[m][: len(rests[m]) * (len(members) - newcomers) // len(members)] for m in members if m is not None]
    stay = {member for member in members if member is not None}
    given = [rests[m][len(part) :] for m, part in zip((m for m in members if m is not None), kept, strict=True)]
    pool = np.concatenate([*given, *(rest for worker, rest in enumerate(rests) if worker not in stay), rests[0][:0]])
    own = iter(kept)
    start = [next(own) if member is not None else pool[:0] for member in members]
    ends = np.cumsum(filled([len(part) for part in start], len(pool)))
    return [np.concatenate(pair) for pair in zip(start, np.split(pool, ends[:-1]), strict=True)]


def filled(levels: list[int], amount: int) -> list[int]:
    """How much each gets of an amount if it always goes to who has least.

    >>> filled([1, 5, 2], 6)
    [4, 0, 2]
    """
    heap = [(level, worker) for worker, level in enumerate(levels)]
    heapq.heapify(heap)
    for _ in range(amount):
        level, worker = heap[0]
        heapq.heapreplace(heap, (level + 1, worker))
    return [level - levels[worker] for level, worker in sorted(heap, key=lambda entry: entry[1])]


def topped_up(shards: list[Indices]) -> list[Indices]:
    """These shards, none of them with fewer than `FEWEST` samples or a tenth of an even share."""
    fewest = max(1, min(FEWEST, sum(map(len, shards)) // (10 * len(shards))))
    for needy, shard in enumerate(shards):
        if (missing := fewest - len(shard)) > 0:
            largest = max(range(len(shards)), key=lambda other: len(shards[other]))
            shards[needy] = np.concatenate([shard, shards[largest][:missing]])
            shards[largest] = shards[largest][missing:]
    return shards
