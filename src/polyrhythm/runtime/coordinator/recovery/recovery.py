"""A job whose coordinator has died goes on: its workers come back, say how far they are, and stand.

The new coordinator takes up the phase as the record says it, hears of each worker's steps as if an exchange had failed
for all, and opens the next phase, as after any loss. What is in whose parameters, which samples are given back and from
whom the state comes then follows as ever.
"""

from collections.abc import Iterable

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.wire.protocol import EpochDone
from polyrhythm.runtime.wire.recovery.permission import standby_goes_on


class Recovery:
    """Who of a job is to come back, and how it goes on when all have, or are known to be gone.

    Args:
        coordinator: a new one, which takes up the job.
        record: where the job stood.

    Attributes:
        awaited: members that have not come back yet.
    """

    def __init__(self, coordinator: RecoverableCoordinator, record: JobRecord) -> None:
        self._coordinator, self._record = coordinator, record
        self._returned: dict[int, Returned] = {}
        self.awaited = record.members.keys() - {*record.gone}
        coordinator.take_up(record)

    def knows(self, worker: int) -> bool:
        """Whether it is a member of the job as it stood; who has come since then joins as at first."""
        return worker in self._record.members

    @property
    def gone(self) -> list[int]:
        """Members that will not come back."""
        return [worker for worker in self._record.members if worker not in self.awaited | self._returned.keys()]

    def returned(self, worker: int, message: Returned) -> None:
        """A member has come back; it may be further than the epoch of the record, out of a loop that it left early."""
        self.awaited.discard(worker)
        self._returned[worker] = message

    def lost(self, worker: int) -> None:
        """A member will not come back, or is gone again."""
        self.awaited.discard(worker)
        self._returned.pop(worker, None)

    def go_on(self, newcomers: Iterable[int] = ()) -> None:
        """All have come back who will; beside them these have come."""
        coordinator, record = self._coordinator, self._record
        self._require_hosts()
        self._require_newest()
        for worker in self.gone:
            coordinator.give_up_member(worker, record.offers.get(worker, ()))
        early = [worker for worker, told in self._returned.items() if self._has_left_loop(told)]
        for worker in early:
            coordinator.put_outside(worker)
        for worker, told in sorted(self._returned.items()):
            if worker not in early:
                coordinator.put_back(worker, told)
        for worker in newcomers:
            coordinator.job.connect(worker)
        coordinator.go_on(self._state)
        if not coordinator.stepping:
            self._end_epoch()
        for worker in early:
            self._say_ready(worker)

    def _require_hosts(self) -> None:
        """The other hosts may go on with the coordinator that is cut off from this one."""
        hosts = () if self._record.guarded else self._record.hosts
        heard = [ranks for ranks in hosts if not self._returned.keys().isdisjoint(ranks)]
        if hosts and not standby_goes_on(len(hosts) + 1, len(heard)):
            raise UsageError(f"of the workers' {len(hosts)} other hosts {len(heard)} are reached from here")

    def _require_newest(self) -> None:
        """No worker is told of a phase without a record, but where a standby had fallen silent before."""
        if any(told.phase > self._record.phase for told in self._told):
            raise UsageError("the workers have gone on since this host had the last word of it")

    @property
    def _told(self) -> Iterable[Returned]:
        return self._returned.values()

    @property
    def _state(self) -> str:
        """That of the policy, which the ranks know if they run it."""
        record = self._record
        told = [each for each in self._told if (each.phase, each.run) == (record.phase, record.run)]
        furthest = max(told, key=lambda each: each.completed, default=Returned())
        return furthest.state or record.state

    def _has_left_loop(self, told: Returned) -> bool:
        ready = told.ready
        return self._record.stand != "between" and ready is not None and ready.epoch > self._record.position.epoch

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
