"""What the parts of the coordinator share: the members of the job, its ledger and workload, and the way out."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from polyrhythm.core import Cluster, Decisions, Event, Ledger, Policy, Ticket
from polyrhythm.core.shards import ShardedWorkload, Shards
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.runtime.wire.protocol import Ready, StateFlow, ToWorker

Home: TypeAlias = Literal["start", "workers", "servers"]
"""Who holds the newest parameters: each worker its own initial ones, the workers, or the servers."""

WORDS = {"finished": "has finished", "died": "died", "hung": "hangs", "removed": "left early"}
"""How the log calls the ways in which a worker can leave."""


class CoordinatorEffects(Protocol):
    """What the coordinator needs from the process that it runs in."""

    def send(self, worker: int, message: ToWorker) -> None: ...

    def apply(self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int]) -> None:
        """Make one optimizer step on the servers with the weighted mean of these gradients."""

    def drop(self, tickets: Sequence[Ticket]) -> None: ...

    def cut(self, reason: str, after: int = 0) -> None:
        """End the collectives of the current phase on all workers, in synchronous mode those after the first `after`
        steps.

        They will say that they are `CollectiveFailed`.
        """

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster) -> None:
        """A new phase starts; what is recorded from now on belongs to it."""

    def record(self, event: Event, decisions: Decisions) -> None: ...

    def wake(self, time_s: float) -> None: ...


def workload_of(ready: Ready) -> Workload:
    if ready.shards:
        return ShardedWorkload(Shards(ready.shards, ready.rotate), ready.dataset_samples)
    return Workload(ready.dataset_samples, ready.dataset_samples)


def flow_of(home: Home, on_servers: bool) -> StateFlow:
    """How the state comes to where a phase needs it.

    >>> flow_of("start", True), flow_of("servers", True), flow_of("servers", False), flow_of("workers", False)
    ('upload', 'keep', 'pull', 'keep')
    """
    if on_servers == (home == "servers"):
        return "keep"
    return "upload" if on_servers else "pull"


@dataclass(slots=True)
class Member:
    """One live worker. `sample_ranges` are granted to it and not yet processed, oldest first; `step` is the one in
    flight.

    `batch_size` is what a policy has set; None is what the worker asked for.
    """

    ready: Ready | None = None
    step: int | None = None
    sample_ranges: deque[SampleRange] = field(default_factory=deque)
    read_version: int = 0
    at_end: bool = False
    batch_size: int | None = None


@dataclass(slots=True)
class Job:
    """State of a job that outlives its phases.

    Args:
        planned: workers that the job was started with; learning rates are scaled to it.
        effects: see `CoordinatorEffects`.
        clock: seconds since the job's start, the only clock that a decision sees.

    `workload` is there from the first epoch on, when the workers have told the size of the data set. `trouble` says how
    the job has diverged, and `rolled_back_samples` counts what was lost when it went back.
    """

    planned: int
    effects: CoordinatorEffects
    clock: Callable[[], float]
    members: dict[int, Member] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    workload: Workload = field(init=False)
    first_epoch: int = 0
    epoch: int = -1
    version: int = 0
    samples: int = 0
    skipped_samples: int = 0
    rolled_back_samples: int = 0
    trouble: str = ""

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks of the live workers that stand in the current epoch, ascending."""
        return tuple(sorted([w for w, m in self.members.items() if m.ready and m.ready.epoch == self.epoch]))

    def refusal(self, message: Ready) -> str:
        if self.epoch >= 0 and message.epoch > self.epoch + 1:
            return f"it starts at epoch {message.epoch} while the job is at epoch {self.epoch}"
        for other, member in self.members.items():
            if self.epoch < 0 and member.ready is not None and member.ready.epoch != message.epoch:
                return (
                    f"it starts at epoch {message.epoch} and rank {other} at epoch {member.ready.epoch}; "
                    "load the same checkpoint on every rank"
                )
            if member.ready is not None and member.ready.dataset_samples != message.dataset_samples:
                return (
                    f"its data set has {message.dataset_samples} samples, that of rank {other} has "
                    f"{member.ready.dataset_samples}; all workers must load the same data set"
                )
            if member.ready is not None and (member.ready.shards, member.ready.rotate) != (
                message.shards,
                message.rotate,
            ):
                return f"its loader cuts the data set otherwise than that of rank {other}; give all the same partition"
        return ""

    @property
    def processed_samples(self) -> int:
        """Samples of the whole workload that the job is past, between two phases."""
        before = self.first_epoch * self.workload.dataset_samples
        return before + self.workload.total_samples - self.workload.left

    @property
    def done_samples(self) -> int:
        """Samples of the whole workload that the job is past, also in the middle of a phase."""
        return self.first_epoch * self.workload.dataset_samples + self.samples + self.skipped_samples

    def cluster(self, epochs: int) -> Cluster:
        batch_size = max(m.ready.batch_size for m in self.members.values() if m.ready)
        samples = self.workload.dataset_samples
        return Cluster(len(self.present), batch_size, samples * max(epochs, 1), self.processed_samples, samples)

    def give_back(self, sample_ranges: Sequence[SampleRange]) -> None:
        for sample_range in sample_ranges:
            self.workload.give_back(sample_range)

    def close_accounts(self) -> None:
        """The policy's view ends; the next one opens accounts anew, with clocks that go on."""
        for worker in tuple(self.ledger.accounts):
            self.ledger.leave(worker)
