"""What the parts of the coordinator share: the members of the job, its ledger and workload, and the way out."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from polyrhythm.core import Cluster, Decisions, Event, Ledger, LeftReason, Policy
from polyrhythm.core.shards import ShardedWorkload, Shards
from polyrhythm.core.workload import UNKNOWN, SampleRange, Workload
from polyrhythm.errors import PolicyError, UsageError
from polyrhythm.runtime.checkpoint.manifest import Position
from polyrhythm.runtime.coordinator.effects import CoordinatorEffects
from polyrhythm.runtime.coordinator.members.agreement import disagreement
from polyrhythm.runtime.coordinator.members.member import WORDS, Member
from polyrhythm.runtime.wire.protocol import AtEnd, Awaited, EpochDone, Phase, Ready, StateFlow, SynchronousSteps
from polyrhythm.runtime.wire.recovery.resumption import Resumption, begun
from polyrhythm.runtime.wire.shard_protocol import LEAST_EVEN, LEAST_SHARE

log = logging.getLogger(__name__)

Stand: TypeAlias = Literal["entering", "stepping", "between"]
"""Where a job can stand: on the way into a phase, in the steps of an epoch, or at its end."""


def workload_of(ready: Ready) -> Workload:
    made = Workload(ready.dataset_samples, ready.dataset_samples)
    if ready.shards:
        made = ShardedWorkload(Shards(ready.shards, ready.rotate), ready.dataset_samples)
    made.least = least_even(ready)
    return made


def least_even(ready: Ready) -> int:
    """Samples that a worker's mini-batches must have, unless all have fewer.

    >>> [least_even(Ready(0, 60, batch_size, terms={LEAST_EVEN: 2})) for batch_size in (4, 1)]
    [2, 1]
    """
    return min(int(ready.terms.get(LEAST_EVEN, 1)), ready.batch_size)


def reraise(error: PolicyError) -> None:
    raise error


@dataclass(slots=True)
class Job:
    """State of a job that outlives its phases.

    Args:
        planned: workers that the job was started with; learning rates are scaled to it.
        effects: see `CoordinatorEffects`.
        clock: seconds since the job's start, the only clock that a decision sees.

    `workload` is there from the first epoch on, when the workers have told the size of the data set. `trouble` says how
    the job has diverged, and `rolled_back_samples` counts what was lost when it went back, `repeated_samples` what was
    made again because a coordinator had died. `before` and `begun` are as in `Position`. `runs_policy_files` says
    whether a policy in a file or module may be run that the job has not loaded, `epochs_given` whether somebody has
    said how many there are. `policy_failed` is called when the
    policy in force has failed; it raises the error if no other can take its place. `observe`, if anybody watches, is
    shown all that the policy in force is told and decides. `hears`, `weighs` and `may_refuse` are as in `Phase`,
    `script` in `Ready`. `settled` is called when all have in their replicas what any of them had before they met,
    `merging` before replicas are told to meet, `chosen` when another policy is chosen for the job, before all are told.
    """

    planned: int
    effects: CoordinatorEffects
    clock: Callable[[], float]
    awaited: set[int] = field(init=False)
    """Planned workers that have not joined yet."""
    members: dict[int, Member] = field(default_factory=dict)
    lengths: dict[int, int] = field(init=False, default_factory=dict)
    """Samples of an epoch, of data of a worker's own."""
    ledger: Ledger = field(default_factory=Ledger)
    workload: Workload = field(init=False)
    first_epoch: int = 0
    before: int = 0
    begun: int = 0
    epoch: int = -1
    script: int | None = None
    version: int = 0
    samples: int = 0
    skipped_samples: int = 0
    skipped_of_epoch: int = 0
    rolled_back_samples: int = 0
    repeated_samples: int = 0
    trouble: str = ""
    runs_policy_files: bool = True
    epochs_given: bool = True
    policy_failed: Callable[[PolicyError], None] = reraise
    settled: Callable[[], None] = lambda: None
    merging: Callable[[], None] = lambda: None
    chosen: Callable[[], None] = lambda: None
    observe: Callable[[Policy[Any], Event, Decisions], None] | None = None
    hears: bool = False
    weighs: bool = False
    may_refuse: bool = False
    told_rest: bool = False
    alarms: int = 0
    """Those that policies have asked for and that have not come yet."""

    def __post_init__(self) -> None:
        self.awaited = set(range(self.planned))

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks of the live workers that stand in the current epoch, ascending."""
        return tuple(
            sorted([w for w, m in self.members.items() if m.ready and m.ready.epoch == self.epoch and not m.out])
        )

    def awaits_step(self, worker: int, number: int) -> bool:
        """Whether this step is under way on a worker."""
        member = self.members.get(worker)
        return member is not None and member.step == number

    def connect(self, worker: int) -> None:
        if worker in self.members:
            raise UsageError(f"rank {worker} is already part of this job; start each rank once")
        self.members[worker] = Member()
        self.awaited.discard(worker)

    def excuse(self, worker: int, said: bool = False) -> bool:
        """Nobody waits any more for a worker that has never joined, and may have said why; whether somebody did."""
        if worker not in self.awaited:
            return False
        self.awaited.remove(worker)
        if not said:
            others = "; going on without it" if self.members or self.awaited else ""
            log.warning("rank %d has not joined%s", worker, others)
        return True

    def readmit(self) -> bool:
        """Those who were out stand in the epoch again, to agree on a state at its end; whether there are any."""
        out = [member for member in self.members.values() if member.out]
        for member in out:
            member.out = False
        return bool(out)

    @property
    def own_data(self) -> bool:
        """Whether the workers read data of their own, so that nobody can process what another leaves."""
        return any(member.ready and member.ready.own for member in self.members.values())

    def refusal(self, worker: int, message: Ready) -> str:
        if message.shards and worker >= len(message.shards):
            return f"the data set is cut for {len(message.shards)} workers, and it is rank {worker}"
        if self.epoch >= 0 and message.epoch > self.epoch + 1:
            return f"it starts at epoch {message.epoch} while the job is at epoch {self.epoch}"
        for other, member in self.members.items():
            if self.epoch < 0 and member.ready is not None and member.ready.epoch != message.epoch:
                return (
                    f"it starts at epoch {message.epoch} and rank {other} at epoch {member.ready.epoch}; "
                    "load the same checkpoint on every rank"
                )
            if self.epoch < 0 and member.ready is not None and member.ready.resumed != message.resumed:
                return (
                    f"it goes on from another place in the epoch than rank {other}; "
                    "load the same checkpoint on every rank"
                )
            beside = member.ready if member.ready is not None and member.ready.epoch == message.epoch else None
            if beside is not None and (difference := disagreement(message, beside, other)):
                return difference
        return ""

    @property
    def processed_samples(self) -> int:
        """Samples of the whole workload that the job is past, between two phases."""
        if self.own_data:
            return self.done_samples
        before = self.first_epoch * self.workload.dataset_samples
        return before + self.workload.total_samples - self.workload.left

    @property
    def done_samples(self) -> int:
        """Samples of the whole workload that the job is past, also in the middle of a phase."""
        before = self.first_epoch * self.workload.dataset_samples % UNKNOWN
        return (self.before if self.own_data else before) + self.samples + self.skipped_samples

    def planned_samples(self, epochs: int) -> int:
        """Samples of so many epochs; of data of their own workers have as many in those to come as in this one."""
        if not self.own_data:
            return self.workload.dataset_samples * epochs
        return max(1, self.begun + self.own_samples * max(0, epochs - self.epoch))

    @property
    def own_samples(self) -> int:
        """Of data of their own, those of an epoch that all workers have together."""
        return min(UNKNOWN, sum(self.lengths.get(worker, 0) for worker in self.members))

    def count_own_data(self) -> None:
        """What those have who stand in the epoch; each has said what all would have if they had as much."""
        for worker, member in self.members.items():
            if member.ready is not None and member.ready.own:
                all_alike = member.ready.dataset_samples
                self.lengths[worker] = all_alike if all_alike == UNKNOWN else max(1, all_alike // self.planned)

    @property
    def is_known(self) -> bool:
        """Whether a worker is there that has said what it trains on."""
        return any(member.ready for member in self.members.values())

    @property
    def has_position(self) -> bool:
        """Whether a worker stands in the epoch."""
        return any(member.ready and member.ready.epoch == self.epoch for member in self.members.values())

    def cluster(self, epochs: int) -> Cluster:
        ready = [member.ready for member in self.members.values() if member.ready]
        batch_size, samples = max(one.batch_size for one in ready), self.workload.dataset_samples
        least = max(int(one.terms.get(LEAST_SHARE, 1)) * one.parts for one in ready)
        planned = self.planned_samples(max(epochs, 1))
        return Cluster(len(self.present), batch_size, planned, self.processed_samples, samples, least)

    def may_begin_epoch(self) -> bool:
        """Whether all stand before a new epoch; before the first, with those that the job still awaits."""
        started = [member.ready for member in self.members.values() if member.ready]
        waiting = self.epoch < 0 and (self.awaited or len(started) < len(self.members))
        return bool(started) and not waiting and all(ready.epoch > self.epoch for ready in started)

    def leave_out(self, worker: int, message: AtEnd) -> None:
        """A worker waits outside of its loop over an epoch; whoever stands before the next begins that without it.

        It must say so twice while somebody stands there: the first may have crossed what it has waited for. But first
        it is asked to come, if that can be; see `call_in`.
        """
        member, epoch = self.members[worker], message.epoch
        if member.ready is None or not epoch == self.epoch == member.ready.epoch:
            return
        awaited = bool(self._before_next)
        if awaited and member.away == epoch:
            log.warning("rank %d stays outside after epoch %d, with its parameters; others go on", worker, epoch)
            member.ready = None
        member.away, member.outside = epoch if awaited else -1, message
        self.call_in()

    @property
    def _before_next(self) -> list[Ready]:
        """Of those who stand before the next epoch."""
        return [member.ready for member in self.members.values() if member.ready and member.ready.epoch > self.epoch]

    def call_in(self) -> None:
        """Ask whoever waits in a collective to begin another epoch with those who have yet to come to that."""
        counts = [ready.collectives for ready in self._before_next if ready.collectives is not None]
        least = min(counts, default=UNKNOWN)
        for worker, member in self.members.items():
            ready, outside = member.ready, member.outside
            if ready is None or outside is None or not outside.epoch == ready.epoch == self.epoch:
                continue
            if least < outside.collectives:
                self.effects.send(worker, Awaited(self.epoch))
                member.outside = None

    def begin_epoch(self, resumed: Position | None = None) -> Resumption | None:
        """All are ready, with different numbers of data of their own; the first may go on from where a job stood.

        Gives what a script's own checkpoint has of this epoch.
        """
        self.skipped_of_epoch = 0
        readies = [member.ready for member in self.members.values() if member.ready]
        ready = max(readies, key=lambda ready: ready.dataset_samples)
        self.script = ready.script
        self.count_own_data()
        if resumed is not None:
            self.go_on(resumed, ready)
        elif self.epoch < 0:
            self.first_epoch = ready.epoch  # which is not 0 if the job was resumed
            self.workload = workload_of(ready)
            self.before = self.begun = self.first_epoch * self.own_samples % UNKNOWN
            if ready.processed:
                self.workload.open(ready.processed)
                self.samples += sum(ready.processed)
            if ready.resumed is not None:
                self.workload.go_on(begun(ready.dataset_samples, ready.resumed.left))
                self.samples += ready.dataset_samples - ready.resumed.samples
                self.epoch = ready.epoch
                return ready.resumed
        elif ready.own:
            self.begun, self.workload = self.done_samples, workload_of(ready)
        else:
            self.workload.extend(ready.dataset_samples)
        self.epoch = ready.epoch
        return None

    @property
    def position(self) -> Position:
        """Where it stands between two phases."""
        ready = next(m.ready for w, m in sorted(self.members.items()) if m.ready and m.ready.epoch == self.epoch)
        counts = self.samples, self.skipped_samples, self.version
        return Position(self.epoch, self.first_epoch, *counts, self.workload.state(), ready, self.before, self.begun)

    def go_on(self, position: Position, ready: Ready) -> None:
        """Stand where another coordinator stood, with the data of which a worker says this."""
        self.epoch, self.first_epoch, self.version = position.epoch, position.first_epoch, position.version
        self.samples, self.skipped_samples = position.samples, position.skipped_samples
        self.before, self.begun = position.before, position.begun
        self.workload = workload_of(ready)
        self.workload.go_on(position.workload)

    def announcements(
        self,
        workers: Sequence[int],
        number: int,
        policy: str,
        source: int,
        contributors: tuple[int, ...],
        flow: StateFlow,
        epochs: int,
        back_to: int | None,
        keeps: bool,
    ) -> Iterator[tuple[int, Phase]]:
        """What these workers are told of a phase; see `Phase`."""
        cluster, members, samples = self.cluster(epochs), self.present, self.workload.dataset_samples
        sizes = cluster.batch_size, cluster.workload_samples, cluster.processed_samples, samples, back_to
        how: Any = {"hears": self.hears, "weighs": self.weighs, "may_refuse": self.may_refuse}
        for worker in workers:
            yield worker, Phase(number, policy, members, source, contributors, flow, self.version, *sizes, keeps, **how)

    def tell_loss(self, worker: int, reason: LeftReason, where: str) -> None:
        """Say that a worker is gone; in the log more quietly if it was through."""
        level = logging.INFO if reason == "finished" else logging.WARNING
        when = f"{where}, epoch {self.epoch}" if self.epoch >= 0 else "before the first epoch"
        log.log(level, "rank %d %s %s", worker, WORDS[reason], when)
        self.effects.tell_loss(worker, reason)

    def finish_epoch(self) -> None:
        processed = None if self.own_data else self.workload.dataset_samples - self.skipped_of_epoch
        for worker in self.present:
            self.members[worker].at_end = False
            self.effects.send(worker, EpochDone(self.epoch, self.version, processed))

    def serves_another(self, left: int) -> bool:
        """Whether so many samples are worth another phase in the same epoch."""
        return left >= 2 * sum(member.ready.batch_size for member in self.members.values() if member.ready)

    def skip_rest(self) -> None:
        """Nobody processes what is left of the epoch."""
        if not self.own_data:  # of which nobody knows how many there would have been
            self.skipped_samples += self.workload.left
            self.skipped_of_epoch += self.workload.left
        self.workload.drain()

    @property
    def lacks_samples(self) -> bool:
        """Whether less is left of the epoch than a step takes that all make together."""
        return self.workload.left < len(self.present) * self.least_even

    @property
    def least_even(self) -> int:
        """Samples that each has in a step that all make together; see `least_even`."""
        return min(least_even(member.ready) for member in self.members.values() if member.ready)

    def leave_out_rest(self) -> None:
        """Of too few samples for a step of all nothing is made; where no epoch has more, all end and say so."""
        left = self.workload.left
        if not self.samples and self.workload.dataset_samples == left:
            least = self.least_even
            whole = SynchronousSteps(self.epoch, (SampleRange(self.epoch, 0, left),), least, least_even=least)
            for worker in self.present:  # which cannot be cut into steps
                self.effects.send(worker, whole)
        elif left and not self.told_rest:
            text = "epoch %d ends without its last %d samples, too few for %d workers; they are counted as skipped"
            log.warning(text, self.epoch, left, len(self.present))
            self.told_rest = True
        self.skip_rest()

    def supply(self, ready: Ready) -> None:
        """Of data of its own a worker says itself when there is no more."""
        if not self.workload.left:
            self.workload.extend(ready.batch_size)

    def skip_unwanted(self) -> None:
        """Where workers read data of their own nobody else can process what is left of an epoch.

        Where one has left it early that is what it had been granted: all others have run out of data before it came
        back.
        """
        if self.own_data or any(self.members[worker].early for worker in self.present):
            self.skip_rest()

    def take_back(self, member: Member) -> None:
        """What this member was granted and has not processed goes to others."""
        self.give_back(member.sample_ranges)
        member.sample_ranges.clear()

    def give_back(self, sample_ranges: Sequence[SampleRange]) -> None:
        for sample_range in sample_ranges:
            self.workload.give_back(sample_range)

    def take_back_unbegun(self, workers: Sequence[int]) -> None:
        """Steps that the policy has let begin are none: these have stopped before."""
        for worker in workers:
            if (ticket := self.ledger.accounts[worker].running) is not None:
                self.ledger.take_back(ticket)

    def close_accounts(self) -> None:
        """The policy's view ends; the next one opens accounts anew, with clocks that go on."""
        for worker in tuple(self.ledger.accounts):
            self.ledger.leave(worker)
