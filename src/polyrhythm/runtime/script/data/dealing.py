"""Who reads what in an unmodified script, where ``--partition`` and ``--injection`` say so.

Both are known before the script reads its first mini-batch. So those of the warm-up step, which torch makes, come from
the workers' own shards already, and the job goes on after them: no sample is read twice.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from polyrhythm.core.epoch_plan import EpochPlan, plan_of
from polyrhythm.core.shards import ShardedWorkload
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import UsageError
from polyrhythm.runtime.script.data.alone import every_nth, warm_up_source
from polyrhythm.runtime.script.data.order import JOB_SEED, deals_out, options_of
from polyrhythm.runtime.script.data.reading import Reading
from polyrhythm.runtime.script.notices import overlook, refuse
from polyrhythm.runtime.wire.config_sources import EARLY, handed_on
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.worker.loader import _Sampler, dealt_to
from polyrhythm.training.data.injection import parse_injection
from polyrhythm.training.data.order import ShardedOrder
from polyrhythm.training.data.partition import Dealt


def placed(inject: Any, place: str) -> Callable[[Any, int], Any]:
    """The same injector; what it refuses is said with the script's line."""

    def call(batch: Any, epoch: int) -> Any:
        try:
            return inject(batch, epoch)
        except UsageError as error:
            raise refuse(str(error), place) from None

    return call


class Dealing:
    """What the call asks for, held against the loaders of a script."""

    def __init__(self, environment: Mapping[str, str], rank: int, workers: int) -> None:
        config = handed_on({name: environment[name] for name in EARLY if name in environment})
        self.partition, self.injection = config.partition, parse_injection(config.injection)
        self.workers, self._rank = workers, rank
        self._asked = flags_of(config)

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def warm_up_batches(
        self, loader: DataLoader[Any], distributed: bool, original: Callable[[DataLoader[Any]], Iterator[Any]]
    ) -> Iterator[Any]:
        """What a loader gives until the script has made its first step."""
        deals = deals_out(loader, distributed)
        if self.partition != "shared" and deals:
            try:
                return self._read(loader, distributed, original)
            except UsageError as error:
                overlook(error)  # `dealt` says so if the script trains on this one
        if deals and loader.num_workers and self.gives_own(distributed):
            return Reading(loader, original)
        if distributed or isinstance(loader.dataset, IterableDataset):
            return original(loader)
        return warm_up_source(loader, original) if deals else every_nth(loader, original, 0, 0, 1)

    def gives_own(self, distributed: bool) -> bool:
        """Whether a loader gives what the script itself would read, until the script has made its first step."""
        return distributed and self.partition == "shared"

    def dealt(self, loader: DataLoader[Any], place: str) -> Dealt | None:
        """The shards of a loader's data; None if all workers read from one order."""
        if self.partition == "shared":
            return None
        sampler = loader.sampler
        if type(sampler) not in (RandomSampler, DistributedSampler) or not getattr(sampler, "shuffle", True):
            raise refuse(
                f"--partition {self.partition} shuffles each worker's shard, and this loader has "
                f"{type(sampler).__name__} with an order of its own; give it shuffle=True, or leave the flag out",
                place,
            )
        if loader.drop_last and not isinstance(sampler, DistributedSampler):
            raise refuse(
                f"--partition {self.partition} deals out all samples, and this loader of a script for one process has "
                "drop_last=True; leave one of them out",
                place,
            )
        seed = int(sampler.seed) if isinstance(sampler, DistributedSampler) else JOB_SEED
        try:
            return dealt_to(self.partition, loader.dataset, None, self._rank, self.workers, seed)
        except UsageError as error:
            raise refuse(str(error).replace("training.partition", "--partition"), place) from None

    def processed(
        self, loader: DataLoader[Any], batches: int, distributed: bool, dealt: Dealt | None
    ) -> tuple[int, ...]:
        """Samples that each worker has read in so many mini-batches from the start of an epoch."""
        assert loader.batch_size is not None, "the job deals it out"
        if dealt is None:
            return (batches * loader.batch_size * (self.workers if distributed else 1),)
        if distributed:
            plan = self._plan(loader, dealt)
            return tuple(sum(plan.size(step, worker) for step in range(batches)) for worker in range(self.workers))
        ends = [min(batches * loader.batch_size, end) for end in dealt.shards.starts]
        return tuple(stop - start for start, stop in pairwise(ends))

    def check_begin(self, batches: int, place: str) -> None:
        """The session is to begin so many mini-batches after the start of an epoch."""
        if self.partition != "shared" and not batches:
            raise refuse(
                f"{self._asked}: the script's first step has taken its whole first epoch; make more steps an epoch, "
                "or leave the flag out",
                place,
            )

    def check_own(self, place: str) -> None:
        if self._asked:
            raise refuse(
                f"{self._asked} needs samples that the job deals out, and this script reads its own; read a map-style "
                "data set by one DataLoader, with shuffle=True or a DistributedSampler, in a for loop that makes its "
                "steps, or leave the flag out",
                place,
            )

    def check_parts(self, parts: int, place: str) -> None:
        if self.injection and parts > 1:
            raise refuse(
                f"--injection makes the mini-batch of a step smaller, and this script adds up the gradients of {parts} "
                "for a step; make a step with each, or leave the flag out",
                place,
            )

    def check_job(self, config: JobConfig, place: str) -> None:
        if flags_of(config) != self._asked:
            raise refuse(
                f"the job was started with {flags_of(config) or 'no --partition'}, and this worker with "
                f"{self._asked or 'none'}; give all hosts the same flags",
                place,
            )

    def _read(
        self, loader: DataLoader[Any], distributed: bool, original: Callable[[DataLoader[Any]], Iterator[Any]]
    ) -> Iterator[Any]:
        dealt = self.dealt(loader, "")
        assert dealt is not None, "asked for"
        assert loader.batch_size is not None, "the job deals it out"
        order = ShardedOrder(dealt)
        if distributed:
            batches = planned(self._plan(loader, dealt), order, self._rank)
        else:
            whole = (order.indices(dealt.shards.part(worker, 0)).tolist() for worker in range(self.workers))
            indices = [index for part in whole for index in part]
            batches = iter(BatchSampler(indices, loader.batch_size, loader.drop_last))
        return original(DataLoader(loader.dataset, batch_sampler=_Sampler(batches), **options_of(loader)))

    def _plan(self, loader: DataLoader[Any], dealt: Dealt) -> EpochPlan:
        """The first epoch of ranks that make their steps together, as the job itself would plan it."""
        assert loader.batch_size is not None, "the job deals it out"
        samples, width = dealt.shards.samples, self.workers * loader.batch_size
        work = ShardedWorkload(dealt.shards, samples - samples % width if loader.drop_last else samples)
        return plan_of(work, range(self.workers), loader.batch_size)


def planned(plan: EpochPlan, order: ShardedOrder, rank: int) -> Iterator[list[int]]:
    for step in range(plan.steps):
        ranges: tuple[SampleRange, ...] = plan.batch(step, rank)
        yield [index for sample_range in ranges for index in order.indices(sample_range).tolist()]


def flags_of(config: JobConfig) -> str:
    """The flags that a config stands for, as they are written.

    >>> flags_of(JobConfig(partition="seldp", injection="0.5,0.5")), flags_of(JobConfig())
    ('--partition seldp --injection 0.5,0.5', '')
    """
    given = {"--partition": (config.partition, "shared"), "--injection": (config.injection, "none")}
    return " ".join(f"{flag} {value}" for flag, (value, default) in given.items() if value != default)
