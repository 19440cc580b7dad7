"""Recovery in the coordinator's process: it leaves word for the next one, and takes up what one before it has left."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from polyrhythm.core import LeftReason
from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.checkpoint.returned import AskState, Returned
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.recovery import Recovery
from polyrhythm.runtime.coordinator.recovery.standby_link import StandbyLink
from polyrhythm.runtime.coordinator.recovery.writer import REFRESH_S, RecordedJob, RecordWriter
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready, ToCoordinator
from polyrhythm.runtime.wire.recovery.memory import Kept, RecoveryMemory

log = logging.getLogger(__name__)

EVENTS = 2**32
"""More than a coordinator tells of."""

DECODER = msgspec.msgpack.Decoder(JobRecord)


class RecoveringServer(RecordedJob, Protocol):
    """The process; see `CoordinatorServer`."""

    def hear(self, worker: int, message: ToCoordinator) -> None:
        """A worker says something to the coordinator."""

    def there(self, worker: int) -> bool:
        """Whether anything has been heard of a worker."""

    def end_if_empty(self) -> None:
        """The job is over if nobody is there."""

    def act(self, act: Callable[[], None]) -> None:
        """Have the coordinator act."""

    def remove(self, worker: int, why: str, reason: LeftReason) -> None:
        """The others go on without a worker."""

    def cut(self, reason: str) -> None:
        """End the exchanges of the phase in which workers stand."""


class JobRecovery:
    """What a coordinator's process does about its own death; nothing without memory.

    Args:
        memory: see `RecoveryMemory`.
    """

    def __init__(self, memory: RecoveryMemory | None) -> None:
        self._memory = memory
        self._kept: Kept | None = memory.read() if memory is not None else None
        self._record: JobRecord | None = DECODER.decode(self._kept.record) if self._kept is not None else None
        self.returning: Recovery | None = None
        """There while workers are still to come back."""
        self.made: memoryview | None = None
        """One word for the samples that are made, as far as the servers know."""
        self._held: list[tuple[int, ToCoordinator | Returned]] = []
        self._asked: list[Callable[[], None]] = []
        self._new: set[int] = set()
        """Members that have died and were started again meanwhile."""
        self._begun_s = time.monotonic()
        self._again = 0
        self._writer: RecordWriter | None = None
        self._server: RecoveringServer
        self.send: Callable[[Channel, Any], None] = Channel.send
        """Say something to a worker, if the next coordinator would know of it."""

    @property
    def goes_on(self) -> bool:
        """Whether the job was under way when this process began."""
        return self._kept is not None

    @property
    def follows(self) -> bool:
        """Whether another coordinator was there before."""
        return self._memory is not None and self._memory.deaths > 0

    @property
    def first_event(self) -> int:
        """Number from which on events are counted, beyond those of the coordinators before."""
        return 0 if self._memory is None else (self._memory.deaths + self._memory.trainings) * EVENTS

    def config(self, config: JobConfig) -> JobConfig:
        """The config of the job: complete, if it was under way."""
        if self._record is None:
            return config
        return msgspec.structs.replace(self._record.config, listen=config.listen, standby=config.standby)

    @property
    def recovers(self) -> bool:
        """Whether the job outlives its coordinator and its servers."""
        return self._memory is not None

    def send_all(self, channels: Sequence[Channel], message: Any) -> None:
        """As `send`, the same to all, in front of what each of them is told next."""
        if self._writer is None or not self._writer.holds_back:
            self._server.loop.send_all(channels, message)
            return
        for channel in channels:
            self.send(channel, message)

    def open(self, server: RecoveringServer) -> float:
        """Take up the job, if there is one; when its clock was 0."""
        self._server = server
        coordinator, record = server.coordinator, self._record
        if self._memory is None:
            return time.monotonic()
        self._writer = RecordWriter(self._memory, server)
        self._writer.record, self.send = record, self._writer.send
        self.made = self._memory.made
        coordinator.note = self._note
        coordinator.job.settled = coordinator.job.merging = self._note_replicas
        coordinator.job.chosen = self.learned
        server.loop.call_later(self._writer.period_s, self._refresh)
        if record is None:
            for rank in self._memory.excused:
                coordinator.absent(rank)
            return time.monotonic()
        if record.guarded:
            self._writer.await_standby(record.hosts)
        self.returning = Recovery(coordinator, record)
        self._restore(record)
        server.loop.call_later(0.0, self._go_on_if_all_are_there)
        server.loop.call_later(server.config.hang_after, self._give_up_waiting)
        return record.started_s

    @property
    def trainings(self) -> int:
        """How many trainings of the scripts are over."""
        return 0 if self._memory is None else self._memory.trainings

    def check_training(self, finished: int) -> None:
        """A worker joins whose script has finished so many trainings.

        Raises:
            UsageError: if that is not the training under way.
        """
        if finished > self.trainings:
            raise UsageError(
                f"it has finished its training number {finished} and waited for the next one, and the coordinator that "
                "has followed a dead one is still at the former"
            )
        if finished < self.trainings:
            raise UsageError(
                f"it is at its training number {finished + 1}, and the job at number {self.trainings + 1}: a worker "
                "cannot come to a job whose script has begun another training"
            )

    def begin_again(self, workers: Iterable[int]) -> None:
        """These workers train something else next, and all others have left."""
        assert self._memory is not None, "asked before"
        self._memory.begin_again(set(range(self._server.config.workers)).difference(workers))

    # -- what the next coordinator finds -------------------------------------------------------------------------------

    def admit(self, channel: Channel) -> StandbyLink:
        """The standby has come.

        Raises:
            UsageError: if the job has none.
        """
        if self._writer is None or not self._server.config.standby:
            raise UsageError("this job has no standby; give --standby on the first host, too")
        return self._writer.admit(channel)

    def close(self) -> None:
        """The job is over."""
        if self._writer is not None:
            self._writer.close()

    def _note(self, stand: Stand) -> None:
        if self._writer is not None:
            self._writer.note(stand)

    def learned(self) -> None:
        """What has just been learned is not to be lost: that the job goes back, or which policy is chosen."""
        if self._writer is not None and self.returning is None:
            self._writer.write_again()

    def _note_replicas(self) -> None:
        """Replicas are to meet, or have met: then what lost workers have put in, or had alone, can be told later."""
        record = self._writer.record if self._writer is not None else None
        if self.returning is None and record is not None and record.stand == "stepping":
            self._note("stepping")

    def _refresh(self) -> None:
        if self._writer is not None:
            if self.returning is None:
                self._writer.refresh()
            self._server.loop.call_later(self._writer.period_s, self._refresh)

    def _restore(self, record: JobRecord) -> None:
        """The servers go on from the snapshot; what was made since then is made again."""
        if record.shape is None or self._kept is None or self._memory is None:
            return
        self._server.shards.service.restore(record.shape, self._kept.numbers, record.position.version)
        self._kept = self._kept._replace(numbers=bytearray())
        self._again = max(0, self._memory.samples - record.position.samples)
        self._server.coordinator.job.repeated_samples += self._again

    @property
    def restored(self) -> tuple[int, int]:
        """Number and version of the snapshot from which servers in other processes go on; 0 if from none."""
        record = self._record
        if record is None or record.shape is None or self._kept is None:
            return 0, 0
        return self._kept.number, record.position.version

    # -- what workers do while they are awaited ------------------------------------------------------------------------

    def awaits(self, worker: int) -> bool:
        """Whether a worker that connects is a member of the job already."""
        return self.returning is not None and self.returning.knows(worker)

    def heard(self, worker: int, message: ToCoordinator | Returned | AskState) -> None:
        """Deal with what a worker says, now or when all are there; with that of others only while any are awaited."""
        if isinstance(message, AskState):
            self._server.coordinator.job.effects.send(worker, self._server.coordinator.script_state)
            return
        if self.returning is None:
            if isinstance(message, Returned):
                self._stand_again(worker, message)
            return
        if isinstance(message, Returned) and worker in self.returning.awaited:
            self.returning.returned(worker, message)
        else:
            if isinstance(message, Ready) and worker in self.returning.awaited:
                self.returning.lost(worker)
                self._new.add(worker)
            if isinstance(message, Returned) and worker in self.returning.gone:  # its connection has ended meanwhile
                self._new.add(worker)
            self._held.append((worker, message))
        self._go_on_if_all_are_there()

    def hold(self, act: Callable[[], None]) -> None:
        """Have this happen when all are there: what a switch or a checkpoint brings to a stop does not step yet."""
        self._asked.append(act)

    def lost(self, worker: int) -> bool:
        """Whether a worker that is gone was a member that is awaited, so that nobody else need hear of it."""
        begun = self._writer is not None and self._writer.record is not None
        if self._memory is not None and not begun:  # before the job begins nobody else remembers it
            self._memory.excuse(worker)
        self._held = [held for held in self._held if held[0] != worker]
        self._new.discard(worker)
        if self.returning is None:
            return False
        if not self.returning.knows(worker):
            self._server.coordinator.job.members.pop(worker, None)
            return True
        self.returning.lost(worker)
        self._go_on_if_all_are_there()
        return True

    def _stand_again(self, worker: int, told: Returned) -> None:
        """One that comes back to a job that has not begun, or that stood before an epoch, joins as at first."""
        if told.ready is not None and not told.done:
            self._server.hear(worker, told.ready)

    def _go_on_if_all_are_there(self) -> None:
        recovery = self.returning
        if recovery is None or recovery.awaited:
            return
        self.returning = None
        self._server.act(self._go_on_with(recovery))
        self._server.end_if_empty()

    def _go_on_with(self, recovery: Recovery) -> Callable[[], None]:
        def act() -> None:
            self._tell()
            try:
                recovery.go_on(self._new)
            except UsageError as error:
                self._server.give_up(f"the job cannot go on after its coordinator has died: {error}")
                return
            held, self._held = self._held, []
            self._new.clear()
            for worker, message in held:
                try:
                    self._server.hear(worker, message)  # type: ignore[arg-type]
                except PolyrhythmError as error:
                    self._server.remove(worker, str(error), "died")
            for asked in self._asked:
                asked()

        return act

    def _tell(self) -> None:
        assert self._record is not None
        position = self._record.position
        again = f"; {self._again} samples since the last snapshot are made again" if self._again else ""
        log.info(
            "goes on after %.2f s: epoch %d, policy %s, phase %d%s",
            *(time.monotonic() - self._begun_s, position.epoch, self._record.policy, self._record.phase, again),
        )

    def _give_up_waiting(self) -> None:
        """Whoever has shown no sign of life by now has died, too; others may be in a long step.

        If they stand in an exchange with one that is stopped, nobody but this coordinator can end that.
        """
        if self.returning is None:
            return
        for worker in [worker for worker in self.returning.awaited if not self._server.there(worker)]:
            self.returning.lost(worker)
        self._go_on_if_all_are_there()
        if self.returning is not None and self.returning.gone:
            self._server.cut(f"rank {self.returning.gone[0]} is gone")
        self._server.loop.call_later(REFRESH_S, self._give_up_waiting)
