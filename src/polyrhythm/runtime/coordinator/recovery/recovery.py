"""A job whose coordinator has died goes on: its workers come back, say how far they are, and stand.

The new coordinator takes up the phase as the record says it, hears of each worker's steps as if an exchange had failed
for all, and opens the next phase, as after any loss. What is in whose parameters, which samples are given back and from
whom the state comes then follows as ever.
"""

from collections.abc import Iterable

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.checkpoint.snapshots import decoded
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Member, workload_of
from polyrhythm.runtime.coordinator.phase_entry import PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.stages import phase_of
from polyrhythm.runtime.wire.protocol import EpochDone


class Recovery:
    """Who of a job is to come back, and how it goes on when all have, or are known to be gone.

    Args:
        coordinator: a new one, which takes up the job.
        record: where the job stood.

    Attributes:
        awaited: members that have not come back yet.
    """

    def __init__(self, coordinator: Coordinator, record: JobRecord) -> None:
        self._coordinator, self._record = coordinator, record
        self._returned: dict[int, Returned] = {}
        self.awaited = set(record.members)
        take_up(coordinator, record)

    def knows(self, worker: int) -> bool:
        """Whether it is a member of the job as it stood; who has come since then joins as at first."""
        return worker in self._record.members

    def returned(self, worker: int, message: Returned) -> None:
        """A member has come back; it may be further than the epoch of the record, out of a loop that it left early."""
        self.awaited.discard(worker)
        self._returned[worker] = message

    def lost(self, worker: int) -> None:
        """A member will not come back, or is gone again."""
        self.awaited.discard(worker)
        self._returned.pop(worker, None)

    def go_on(self) -> None:
        """All have come back who will."""
        job = self._coordinator.job
        if self._record.entry is not None and self._record.entry.goes_back:
            raise UsageError("it was about to go back to a state that its workers have kept")
        gone = [worker for worker in self._record.members if worker not in self._returned]
        if gone and any(told.phase == self._record.phase and told.merges > self._record.merges for told in self._told):
            raise UsageError(f"the ranks {gone} have died, too, and it is not known what others have of theirs")
        for worker in gone:
            member = job.members.pop(worker)
            job.tell_loss(worker, "died", "while there was no coordinator")
            self._lose(worker, member)
        early = [worker for worker, told in self._returned.items() if self._has_left_loop(told)]
        for worker in early:
            member, job.members[worker] = job.members[worker], Member()
            self._lose(worker, member)
        for worker, told in sorted(self._returned.items()):
            if worker not in early:
                self._place(worker, told)
        self._begin()
        for worker in early:
            self._say_ready(worker)

    @property
    def _told(self) -> Iterable[Returned]:
        return self._returned.values()

    def _has_left_loop(self, told: Returned) -> bool:
        ready = told.ready
        return self._record.stand != "between" and ready is not None and ready.epoch > self._record.position.epoch

    def _lose(self, worker: int, member: Member) -> None:
        coordinator = self._coordinator
        if coordinator.entry is not None:
            coordinator.entry.lose(worker)
        elif coordinator._stepping and worker in self._record.phase_members:
            coordinator._mode.lost(worker, member, "died")

    def _place(self, worker: int, told: Returned) -> None:
        coordinator, record = self._coordinator, self._record
        if coordinator.entry is not None:
            if told.inside and told.phase == record.phase:
                coordinator.entry.entered(worker)
            else:
                coordinator.entry.fail(worker, "its coordinator has died")
        elif coordinator._stepping and worker in coordinator._phase_members:
            run = told.run if coordinator._mode.together else record.run
            here = (told.phase, run) == (record.phase, record.run)
            coordinator._mode.returned(worker, told if here else Returned())

    def _begin(self) -> None:
        coordinator, record = self._coordinator, self._record
        told = [each for each in self._returned.values() if (each.phase, each.run) == (record.phase, record.run)]
        furthest = max(told, key=lambda each: each.completed, default=Returned())
        coordinator.snapshots.begin_in(record.policy, furthest.state or record.state)
        if not coordinator._stepping:
            self._end_epoch()
        elif not coordinator.job.present:
            coordinator._meet()
        elif coordinator.entry is not None:
            coordinator._enter_again(coordinator.entry)
        else:
            coordinator._start_phase()

    def _end_epoch(self) -> None:
        """The epoch is over for everyone; some have heard of it, and stand before the next one."""
        job = self._coordinator.job
        for worker, told in sorted(self._returned.items()):
            if not told.done and told.ready is not None and told.ready.epoch == job.epoch:
                job.effects.send(worker, EpochDone(job.epoch, job.version))
        for worker in sorted(self._returned):
            self._say_ready(worker)

    def _say_ready(self, worker: int) -> None:
        """One that stands before another epoch has said so to the coordinator that has died."""
        ready = self._returned[worker].ready
        if ready is not None and ready.epoch > self._record.position.epoch:
            self._coordinator.receive(worker, ready)


def take_up(coordinator: Coordinator, record: JobRecord) -> None:
    """Put a new coordinator where the one stood that has left this record."""
    job, position = coordinator.job, record.position
    coordinator.plan(parse_policy(record.chosen), record.config.epochs)
    coordinator.phase = coordinator.choice.phase = record.phase
    coordinator.policy, coordinator.run = parse_policy(record.policy), record.run
    coordinator.choice.stages.resume(decoded(record.chosen, record.supervised))
    job.awaited, job.epoch = set(record.awaited), position.epoch
    job.first_epoch, job.version = position.first_epoch, position.version
    job.samples, job.skipped_samples = position.samples, position.skipped_samples
    job.rolled_back_samples, job.repeated_samples = record.rolled_back, record.repeated
    job.members = {rank: Member(each.ready, out=each.out) for rank, each in record.members.items()}
    job.workload = workload_of(position.ready)
    job.workload.go_on(position.workload)
    coordinator._phase_members = record.phase_members
    take_up_holders(coordinator, record)
    take_up_phase(coordinator, record)
    coordinator.choice.begin(coordinator.policy)


def take_up_holders(coordinator: Coordinator, record: JobRecord) -> None:
    state, kept = coordinator._state, record.holders
    state.home, state._contributors = kept.home, kept.contributors
    state._holders, state._others = kept.holders, kept.others
    for ranks, sample_ranges in kept.unsynchronised:
        state.unsynchronised.noted.append((set(ranks), sample_ranges))


def take_up_phase(coordinator: Coordinator, record: JobRecord) -> None:
    """The phase as it was; its policy is shown nothing any more, as nobody knows what it has been shown."""
    coordinator._stepping = record.stand != "between"
    if not coordinator._stepping:
        coordinator._mode = PhaseKind(record.phase)
        return
    job, kept = coordinator.job, record.entry
    coordinator._mode = mode = phase_of(coordinator.policy, record.phase, job, job.cluster(record.config.epochs))
    mode.book_only()
    if kept is not None:
        coordinator.entry = PhaseEntry(kept.members, kept.source, mode.on_workers, kept.goes_back)
    else:
        mode.start()
