"""A coordinator that says where its job stands, and that can be put where another one stood."""

import logging
from copy import deepcopy
from typing import Any

import msgspec

from polyrhythm.core import Policy
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Position
from polyrhythm.runtime.checkpoint.returned import JobState, Returned
from polyrhythm.runtime.checkpoint.snapshots import decoded, encoded
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.members.member import Member, MemberOffers
from polyrhythm.runtime.coordinator.phase_entry import PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.recovery.record import EntryRecord, JobRecord, MemberRecord
from polyrhythm.runtime.coordinator.stages import phase_of
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.recovery.resumption import Resumption, left_of

log = logging.getLogger(__name__)


class RecoverableCoordinator(Coordinator):
    """See `Coordinator`; what follows is all that recovery does with one."""

    # -- where it stands ---------------------------------------------------------------------------------------------

    @property
    def on_servers(self) -> bool:
        """Whether the servers have the newest parameters."""
        return self._state.home == "servers"

    @property
    def entering(self) -> bool:
        """Whether workers are on the way into a phase."""
        return self.entry is not None

    @property
    def stepping(self) -> bool:
        """Whether an epoch is under way."""
        return self._stepping

    def record(self, config: JobConfig, stand: Stand, started_s: float) -> JobRecord:
        """Where the job stands; what is handed out counts as if it had been given back."""
        job, entry = self.job, self.entry
        return JobRecord(
            config=config,
            stand=stand,
            started_s=started_s,
            phase=self.phase,
            run=self.run,
            policy=self.policy.spec,
            **self.learned,
            position=self._position,
            members={
                rank: MemberRecord(member.ready, member.out)
                for rank, member in job.members.items()
                if member.ready is not None and member.ready.epoch == job.epoch
            },
            phase_members=self._phase_members,
            awaited=tuple(job.awaited),
            holders=self._state.record,
            entry=None if entry is None else EntryRecord(tuple(entry.awaited), entry.source, entry.goes_back),
            rolled_back=job.rolled_back_samples,
            repeated=job.repeated_samples,
            offers=self._mode.offers,
        )

    @property
    def learned(self) -> dict[str, Any]:
        """What may change while the workers know everything else: what policies have learned, as far as it can be
        kept, which one was chosen, which goes on in its place, and whether the job goes back.
        """
        policy, choice = self.policy.spec, self.choice
        return {
            "state": encoded(policy, self._mode.resting, logging.DEBUG),
            "chosen": choice.spec,
            "supervised": encoded(choice.spec, choice.stages.known, logging.DEBUG),
            "began": "" if choice.began is None else choice.began.spec,
            "before": "" if choice.before is None else choice.before.spec,
            "rollback": self._rollback.record,
        }

    @property
    def script_state(self) -> JobState:
        """For a script's own checkpoint within an epoch."""
        learned, settled = self.learned, self.on_servers and not self.entering and self.job.has_position
        left = left_of(self._position.workload) if settled else ()
        told = learned["state"], learned["chosen"], learned["supervised"]
        return JobState(Resumption(left, self.policy.spec, *told), self.job.version if settled else None)

    @property
    def _position(self) -> Position:
        position, outstanding = self.job.position, self._mode.outstanding
        if not outstanding:
            return position
        workload = deepcopy(self.job.workload)
        for sample_range in outstanding:
            workload.give_back(sample_range)
        samples = position.samples - self._mode.unsettled_samples
        return msgspec.structs.replace(position, workload=workload.state(), samples=samples)

    # -- where another one stood -------------------------------------------------------------------------------------

    def take_up(self, record: JobRecord) -> None:
        """Stand where the one stood that has left this record, until all its members have come back."""
        job, position = self.job, record.position
        self.plan(parse_policy(record.chosen), record.config.epochs)
        self.phase = self.choice.phase = record.phase
        self.policy, self.run = parse_policy(record.policy), record.run
        self.choice.stages.resume(decoded(record.chosen, record.supervised))
        job.awaited, job.script = set(record.awaited), position.ready.script
        job.rolled_back_samples, job.repeated_samples = record.rolled_back, record.repeated
        job.members = {rank: Member(each.ready, out=each.out) for rank, each in record.members.items()}
        job.go_on(position, position.ready)
        job.count_own_data()
        self._phase_members = record.phase_members
        self._state.take_up(record.holders)
        self._rollback.take_up(record.rollback, position.ready)
        self._take_up_phase(record)
        known = {spec: read_again(spec) for spec in {record.began, record.before}}
        self.choice.began, self.choice.before = known[record.began], known[record.before]

    def _take_up_phase(self, record: JobRecord) -> None:
        """The phase as it was; its policy is shown nothing any more, as nobody knows what it has been shown."""
        self._stepping = record.stand != "between"
        if not self._stepping:
            self._mode = PhaseKind(record.phase)
            return
        job, kept = self.job, record.entry
        self._mode = mode = phase_of(self.policy, record.phase, job, job.cluster(record.config.epochs))
        mode.book_only()
        if kept is not None:
            self.entry = PhaseEntry(kept.members, kept.source, mode.on_workers, kept.goes_back)
        else:
            mode.start()

    def give_up_member(self, worker: int, offers: MemberOffers) -> None:
        """A member has died since the record, according to which it put this into exchanges; others may have it."""
        if offers and self.entry is None:
            self._mode.returned(worker, Returned(offers=offers))
        member = self.job.members.pop(worker)
        self.job.tell_loss(worker, "died", "while there was no coordinator")
        self._state.forget(worker, "died")
        self._rollback.forget(worker)
        self._lose_member(worker, member)

    def put_outside(self, worker: int) -> None:
        """A member has come back that has left its loop over the epoch early."""
        member, self.job.members[worker] = self.job.members[worker], Member()
        self._state.left_early(worker)
        self._lose_member(worker, member)

    def _lose_member(self, worker: int, member: Member) -> None:
        if self.entry is not None:
            self.entry.lose(worker)
        elif self._stepping and worker in self._phase_members:
            self._mode.lost(worker, member, "died")

    def put_back(self, worker: int, told: Returned) -> None:
        """A member has come back, and says how far it is."""
        if self.entry is not None:
            if told.inside and told.phase == self.phase:
                self.entry.entered(worker)
            else:
                self.entry.fail(worker, "its coordinator has died")
        elif self._stepping and worker in self._phase_members:
            here = told.phase == self.phase and (told.run == self.run or not self._mode.together)
            self._mode.returned(worker, told if here else Returned())

    def go_on(self, state: str) -> None:
        """All members are back who will be: they enter the next phase, with the policy in this state.

        If the epoch was over, nothing is to be done.
        """
        self.snapshots.begin_in(self.policy.spec, state)
        if not self._stepping:
            return
        if not self.job.present:
            self._meet()
        elif self.entry is not None:
            self._enter_again(self.entry)
        else:
            self._start_phase()


def read_again(spec: str) -> Policy[Any] | None:
    """A policy that the job has left, if there is one: its file may be gone since then."""
    try:
        return parse_policy(spec) if spec else None
    except UsageError as error:
        log.warning("the job cannot go back to the policy before: %s", error)
        return None
