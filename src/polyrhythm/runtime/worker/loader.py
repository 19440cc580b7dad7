"""The session's data loader: an ordinary DataLoader whose batches are the positions that this worker was granted.

It also knows which of them make up an optimizer step, and which came to nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from threading import get_ident
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import ScenarioError, UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready, Term
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import LEAST_EVEN, NOT_APART, NOT_IN_SHARES
from polyrhythm.runtime.worker.context import DrawnBatch
from polyrhythm.runtime.worker.presence.epoch_place import EpochPlace
from polyrhythm.runtime.worker.refusals import check_dataset, check_options
from polyrhythm.training.data.fingerprint import content_of, digest, selection_of
from polyrhythm.training.data.injection import parse_injection
from polyrhythm.training.data.order import ShardedOrder
from polyrhythm.training.data.partition import BY_LABEL, Dealt, Partition, deal, parse_partition


def dealt_to(
    partition: str, dataset: Dataset[Any], labels: Any | None, rank: int, workers: int, seed: int
) -> Dealt | None:
    """The shards of all planned workers; None if all read from one order.

    Args:
        partition: a spec, see `polyrhythm.training.data.partition`.
        dataset: has a length; where a partition reads labels and none are given, they are its `targets` or, of a
            `TensorDataset`, its last tensor.
        labels: one a sample.
        rank: of this worker.
        workers: how many are planned.
        seed: the same on every worker.

    Raises:
        UsageError: for a spec that cannot be read, labels that are missing, or a worker without a shard.
    """
    try:
        chosen = parse_partition(partition)
    except ScenarioError as error:
        raise UsageError(str(error).removeprefix("training.")) from None
    if type(chosen) is Partition:
        return None
    if rank >= workers:
        raise UsageError(
            f"rank {rank} has no shard: partition {partition!r} deals one to each of {workers} planned workers; "
            "start it under the rank of a worker that has left"
        )
    return deal(chosen, labels_of(chosen, dataset, labels), workers, seed)


def asked_data(
    config: JobConfig, rank: int, partition: str | None, injection: tuple[float, float] | None
) -> tuple[str, tuple[float, float] | None]:
    """Partition and injection of a job: what was chosen outside of the script, or else the loader's arguments.

    Args:
        config: of the job.
        rank: of this worker; the first says what is overruled.
        partition, injection: of the loader.
    """
    chosen, asked = {"partition": partition, "injection": injection}, dict[str, Any]()
    holds = {"partition": config.partition, "injection": parse_injection(config.injection)}
    for name, value in chosen.items():
        asked[name] = holds[name] if name in config.given else value
        if rank == 0 and value is not None and value != asked[name]:
            say(f"{config.label(name)} {getattr(config, name)} holds; {value} of session.loader is overruled")
    return "shared" if asked["partition"] is None else asked["partition"], asked["injection"]


INJECTED = "samples are injected between workers that make their steps together; use bsp, local, diloco or selsync"


def data_terms(partition: str, injection: tuple[float, float] | None) -> dict[str, Term]:
    """What all workers must say alike of who reads what."""
    unable = {NOT_IN_SHARES: "samples are injected; use policy bsp", NOT_APART: INJECTED} if injection else {}
    return {"partition": partition, "injection": str(injection), **unable}


def labels_of(partition: Partition, dataset: Dataset[Any], labels: Any | None) -> Any:
    """One label a sample; any will do for a partition that does not read them."""
    samples = len(dataset)  # type: ignore[arg-type]
    if not isinstance(partition, BY_LABEL):
        return np.zeros(samples)
    if labels is None and isinstance(dataset, Subset):
        return labels_of(partition, dataset.dataset, None)[list(dataset.indices)]
    if labels is None and isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        labels = dataset.tensors[-1]
    labels = getattr(dataset, "targets", None) if labels is None else labels
    if labels is None or len(labels) != samples:
        raise UsageError(
            f"partition {partition.name!r} reads one label a sample, and {type(dataset).__name__} has no targets; "
            f"give the data set an attribute targets, or session.loader(labels=...), with {samples} of them"
        )
    return torch.as_tensor(labels).cpu()


LoaderSample = TypeVar("LoaderSample", covariant=True)


class Source(Protocol):
    """Who grants mini-batches; see `polyrhythm.runtime.worker.worker.Worker`."""

    def begin_epoch(self, ready: Ready) -> None: ...

    def draw(self) -> DrawnBatch | None: ...

    def dealt(self, draw: DrawnBatch, part: float, last: bool) -> bool:
        """The script is about to get a mini-batch, or a part of it: its samples by those of an equal part.

        A step follows the `last` part. False if the mini-batch is void, since another phase has begun.
        """

    def end_epoch(self) -> bool: ...


class Steps(Protocol):
    """Who makes the steps; see `polyrhythm.runtime.worker.worker.Worker`."""

    def skip_step(self, samples: int) -> None:
        """The script made no step with these samples."""


class Accumulation:
    """Follows what the script gets from the loader and what it does with it.

    A step belongs to all mini-batches since the step before. If the script asks for the next one although a step was
    due, that step came to nothing, as when a GradScaler finds infinities.
    """

    def __init__(self, steps: Steps) -> None:
        self.samples = 0
        self.due = False
        self._steps = steps

    def start(self) -> None:
        """An epoch starts; what a loop that was left early had got is the business of others now."""
        self.samples, self.due = 0, False

    def given(self, samples: int, last: bool) -> None:
        """The script gets a mini-batch; `last` if a step is due after it. Call `end` first."""
        self.samples += samples
        self.due = last

    def end(self) -> None:
        """No further mini-batch belongs to the step that is due, if one is."""
        if self.due:
            self._steps.skip_step(self.take())

    def take(self) -> int:
        samples, self.samples, self.due = self.samples, 0, False
        return samples


class LoaderTurns:
    """Of several loaders each has the epochs after those of all others, whenever it was made."""

    def __init__(self) -> None:
        self.latest: SessionLoader[Any] | None = None
        """The one that has begun the latest epoch."""
        self.place: EpochPlace | None = None
        """Where a checkpoint of the script's stands, until the first of them begins an epoch."""

    def begin(self, loader: "SessionLoader[Any]") -> None:
        """It begins the next epoch, of as many samples as those before."""
        if (latest := self.latest) is not None:
            if loader.samples != latest.samples:
                raise UsageError(
                    f"session.loader begins an epoch of {loader.samples} samples after one of {latest.samples}; give "
                    "all epochs data sets of one length, and read validation data by a plain DataLoader"
                )
            loader.epoch = max(loader.epoch, latest.epoch)
        if self.place is not None:
            loader.resume(self.place)
        loader.epoch, self.latest, self.place = loader.epoch + 1, loader, None


class SessionLoader(Generic[LoaderSample]):
    """Iterates over this worker's share of an epoch; the epoch's order is one permutation, the same on all workers.

    Args:
        dataset: map-style, the same on every worker.
        batch_size: samples of one step.
        source: grants mini-batches.
        accumulation: told of every mini-batch just before the script gets it.
        shuffle: whether an epoch's permutation is random, from `seed` and the epoch.
        accumulate: mini-batches of ``batch_size / accumulate`` that make up one step.
        dealt: the shards from which the workers read instead of one permutation; then `shuffle` says nothing.
        terms: further values that must be the same on all workers, by the name of the argument.
        inject: called with a mini-batch and the epoch just before the script gets what it returns.
        workers: of the job, as far as its length needs them.
        own: which samples of a mini-batch this process reads; None: all of them.
        turns: of the loaders of one session.
        options: further arguments of `torch.utils.data.DataLoader`, such as ``num_workers``.
    """

    def __init__(
        self,
        dataset: Dataset[LoaderSample],
        batch_size: int,
        source: Source,
        accumulation: Accumulation,
        *,
        shuffle: bool = True,
        seed: int = 0,
        accumulate: int = 1,
        first_epoch: int = 0,
        dealt: Dealt | None = None,
        terms: Mapping[str, Term] = MappingProxyType({}),
        inject: Callable[[Any, int], Any] | None = None,
        workers: int = 1,
        own: Callable[[list[int]], list[int]] | None = None,
        turns: LoaderTurns | None = None,
        **options: Any,
    ) -> None:
        check_dataset(dataset)
        check_options(options)
        if batch_size < 1 or accumulate < 1 or batch_size % accumulate:
            raise UsageError(
                f"batch_size {batch_size} must be a positive multiple of accumulate, which is {accumulate}"
            )
        self.dataset = dataset
        self.batch_size = int(batch_size)
        self.epoch = first_epoch - 1
        self._samples = len(dataset)  # type: ignore[arg-type]
        self._source = source
        self._accumulation = accumulation
        self._shuffle, self._seed, self._accumulate = shuffle, seed, accumulate
        self._sharded = ShardedOrder(dealt) if dealt else None
        self._terms = {
            **terms,
            **terms_of(dataset, dealt),
            **({"seed": int(seed)} if shuffle or dealt or inject else {}),
        }
        self._content = content_of(dataset)
        self._resumed: Resumption | None = None
        self._inject, self._share = inject, workers
        self._own, self._turns = own or (lambda indices: indices), turns or LoaderTurns()
        self._options = options
        self._drawn: deque[tuple[DrawnBatch, int, float, bool]] = deque()
        """What was drawn; of a part of it the samples, these by those of an equal part, and whether it is the last."""
        self._thread = 0
        self.inside = False
        """Whether the script is inside its loop over an epoch."""

    def resume(self, place: EpochPlace) -> None:
        """Begin the next epoch where a checkpoint stands in it."""
        self._resumed = place.checked(self._samples, self._terms)

    @property
    def samples(self) -> int:
        """Of an epoch."""
        return self._samples

    def __len__(self) -> int:
        """Mini-batches of an even share of an epoch, for a progress bar; a worker may get more, or fewer."""
        return -(-self._samples // (self._share * self.batch_size)) * self._accumulate

    def __iter__(self) -> Iterator[Any]:
        """One epoch. Leaving the loop early leaves the epoch to the other workers."""
        self._refuse_other_thread()
        self._turns.begin(self)
        self._accumulation.start()
        order = self._order(self.epoch)
        self._source.begin_epoch(self._ready())
        self._resumed = None
        self.inside = True
        try:
            while self.inside:
                yield from self._batches(order)
                self.inside = not self._source.end_epoch()
        finally:
            self.inside = False

    def _refuse_other_thread(self) -> None:
        """Both would read what the coordinator says to one of them."""
        if self.inside and self._thread != get_ident():
            raise UsageError("session.loader is being iterated in another thread; iterate it in one thread only")
        self._thread = get_ident()

    def _ready(self, processed: tuple[int, ...] = ()) -> Ready:
        shards = self._sharded.cut if self._sharded else None
        cut = (shards.sizes, shards.rotate) if shards else ((), False)
        own = self.epoch, self._samples, self.batch_size, self._ahead, processed
        return Ready(*own, *cut, terms=self._terms, content=self._content, resumed=self._resumed)

    def place(self, resumption: Resumption | None) -> EpochPlace | None:
        """Where the job stands in the epoch of this loader; None if that cannot be said."""
        if resumption is None or self._sharded:
            return None
        return EpochPlace(resumption, self._samples, self._terms)

    @property
    def _ahead(self) -> int:
        workers = self._options.get("num_workers", 0)
        return workers * (self._options.get("prefetch_factor") or 2) if workers else 0

    def _order(self, epoch: int) -> list[int]:
        """What stands at each position of an epoch, unless each worker has its own order."""
        if self._sharded:
            return []
        if not self._shuffle:
            return list(range(self._samples))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return torch.randperm(self._samples, generator=generator).tolist()

    def _batches(self, order: list[int]) -> Iterator[Any]:
        """Mini-batches as they are granted; those that were fetched in advance and are void by now are left out."""
        self._drawn.clear()
        for batch in self._load(self._indices(order)):
            self._accumulation.end()  # which may bring another phase, in which this batch is void
            draw, samples, share, last = self._drawn.popleft()
            if self._source.dealt(draw, share, last):
                self._accumulation.given(samples, last)
                if self._inject and draw.weight is not None:
                    raise UsageError("injection needs mini-batches of one size, and the policy deals unequal shares")
                yield self._inject(batch, self.epoch) if self._inject else batch
        self._accumulation.end()

    def _load(self, batches: Iterator[list[int]]) -> Iterator[Any]:
        return iter(DataLoader(self.dataset, batch_sampler=_Sampler(batches), **self._options))

    def _indices(self, order: list[int]) -> Iterator[list[int]]:
        """Indices of each mini-batch that is drawn; several for one step if gradients are accumulated."""
        while (draw := self._source.draw()) is not None:
            indices = self._read(order, draw.sample_ranges)
            if self._accumulate == 1 and indices:
                self._drawn.append((draw, len(indices), 1.0, True))
                yield self._own(indices)
                continue
            parts = self._cut(indices, draw)
            for number, part in enumerate(parts, 1):
                share = len(part) * self._divisor(len(parts)) / len(indices)
                self._drawn.append((draw, len(part), share, number == len(parts)))
                yield self._own(part)

    def _divisor(self, parts: int) -> int:
        """What the script divides the gradients of a step of so many mini-batches by."""
        del parts
        return self._accumulate

    def _cut(self, indices: list[int], draw: DrawnBatch) -> list[list[int]]:
        """The mini-batches of a step: fewer where one would be too small for the model."""
        del draw
        least = min(int(self._terms.get(LEAST_EVEN, 1)), self.batch_size // self._accumulate)
        return evenly(indices, max(1, min(self._accumulate, len(indices) // least)))

    def _read(self, order: list[int], ranges: Sequence[SampleRange]) -> list[int]:
        if self._sharded:
            return list(chain.from_iterable(self._sharded.indices(each).tolist() for each in ranges))
        if len(ranges) == 1:
            return order[ranges[0].start : ranges[0].stop]
        return list(chain.from_iterable(order[each.start : each.stop] for each in ranges))


def terms_of(dataset: Dataset[Any], dealt: Dealt | None) -> dict[str, Term]:
    """Which samples there are to be dealt out, and to whom, in a word each."""
    found = {"subset": selection_of(dataset), "labels": digest(dealt.indices) if dealt else ""}
    return {name: word for name, word in found.items() if word}


def evenly(indices: list[int], count: int) -> list[list[int]]:
    """In `count` parts that differ by one at most.

    >>> evenly([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4, 5]]
    """
    ends = [number * len(indices) // count for number in range(count + 1)]
    return [indices[start:stop] for start, stop in pairwise(ends)]


class _Sampler:
    """A batch sampler over an iterator, which DataLoader asks in this process, also for its worker processes."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._iterator = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._iterator
