"""Recovery in the coordinator's process: it leaves word for the next one, and takes up what one before it has left."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import torch

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.checkpoint.returned import AskState, Returned
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.recovery.record import JobRecord, learned_of, record_of, state_of
from polyrhythm.runtime.coordinator.recovery.recovery import Recovery
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.job_config import JobConfig, seconds
from polyrhythm.runtime.wire.protocol import Ready, ToCoordinator
from polyrhythm.runtime.wire.recovery.memory import Kept, RecoveryMemory
from polyrhythm.runtime.wire.segments import shape_of
from polyrhythm.runtime.wire.worker_buffers import as_bytes

log = logging.getLogger(__name__)

REFRESH_S = 1.0
"""How often what policies have learned is written."""

EVENTS = 2**32
"""More than a coordinator tells of."""

ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(JobRecord)


class RecoveringServer(Protocol):
    """The process; see `CoordinatorServer`."""

    loop: Loop
    config: JobConfig
    coordinator: Coordinator
    shards: ShardGroup

    @property
    def started_s(self) -> float:
        """When the job's clock was 0."""

    def hear(self, worker: int, message: ToCoordinator) -> None:
        """A worker says something to the coordinator."""

    def give_up(self, reason: str) -> None:
        """The job ends for everyone."""

    def there(self, worker: int) -> bool:
        """Whether anything has been heard of a worker."""

    def end_if_empty(self) -> None:
        """The job is over if nobody is there."""

    def act(self, act: Callable[[], None]) -> None:
        """Have the coordinator act."""


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
        self._new: set[int] = set()
        """Members that have died and were started again meanwhile."""
        self._begun_s = self._written_s = time.monotonic()
        self._again = 0
        self._server: RecoveringServer

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
        return 0 if self._memory is None else self._memory.deaths * EVENTS

    def config(self, config: JobConfig) -> JobConfig:
        """The config of the job: complete, if it was under way."""
        return config if self._record is None else self._record.config

    def recovers(self, config: JobConfig) -> bool:
        """Whether a job of this config outlives its coordinator."""
        return self._memory is not None and config.shards == 1 and config.averaging == "ring"

    def promise(self, config: JobConfig) -> bool:
        """What a worker that joins is told of that; whoever starts coordinators must know it, too."""
        if self._memory is not None:
            self._memory.allow(self.recovers(config))
        return self.recovers(config)

    def open(self, server: RecoveringServer) -> float:
        """Take up the job, if there is one; when its clock was 0."""
        self._server = server
        coordinator, record = server.coordinator, self._record
        if self._memory is None:
            return time.monotonic()
        coordinator.note = self.note
        self.made = self._memory.made
        coordinator.job.settled = self._settle
        server.loop.call_later(self._period_s, self._refresh)
        if record is None:
            for rank in self._memory.excused:
                coordinator.absent(rank)
            return time.monotonic()
        self.returning = Recovery(coordinator, record)
        self._restore(record)
        server.loop.call_later(0.0, self._go_on_if_all_are_there)
        server.loop.call_later(server.config.hang_after, self._give_up_waiting)
        return record.started_s

    # -- what the next coordinator finds -------------------------------------------------------------------------------

    def note(self, stand: Stand) -> None:
        """The job stands there, and its workers do not know it yet."""
        server = self._server
        if self._memory is None or not self.recovers(server.config):
            return
        self._record = record_of(server.coordinator, server.config, stand, server.started_s)
        self._write()

    def _settle(self) -> None:
        """All replicas have met: what only workers that are lost have seen can be told from here on."""
        if self.returning is None and self._record is not None and self._record.stand == "stepping":
            self.note("stepping")

    def _refresh(self) -> None:
        """What a policy learns from the times of its workers none of these knows, nor what the servers have."""
        record, server = self._record, self._server
        coordinator = server.coordinator
        if record is not None and self.returning is None:
            if coordinator._state.home != "servers":
                self._refresh_policy(record, coordinator)
            elif coordinator.entry is None and self._is_old(server.config):
                self._record = record_of(coordinator, server.config, record.stand, server.started_s)
                self._write()
        server.loop.call_later(self._period_s, self._refresh)

    def _refresh_policy(self, record: JobRecord, coordinator: Coordinator) -> None:
        refreshed = msgspec.structs.replace(record, **learned_of(coordinator))
        if refreshed != record:
            self._record = refreshed
            self._write()

    @property
    def _period_s(self) -> float:
        return min(REFRESH_S, seconds(self._server.config.snapshot))

    def _is_old(self, config: JobConfig) -> bool:
        """Whether the newest snapshot will be older than it may be at the next look."""
        return time.monotonic() + self._period_s / 2 >= self._written_s + seconds(config.snapshot)

    def _write(self) -> None:
        """The newest record; where the servers have the state, with that."""
        assert self._memory is not None, "there is a place for it"
        assert self._record is not None, "there is something to write"
        shard, numbers = self._server.shards.service.shard, list[memoryview]()
        if self._server.coordinator._state.home == "servers" and shard is not None:
            state = shard.state()
            self._record = msgspec.structs.replace(self._record, shape=shape_of(state))
            numbers = [as_bytes(shard.vector), *(as_bytes(vector.values) for vector in state.vectors.values())]
        self._memory.write(ENCODER.encode(self._record), numbers)
        self._written_s = time.monotonic()

    def _restore(self, record: JobRecord) -> None:
        """The servers go on from the snapshot; what was made since then is made again."""
        if record.shape is None or self._kept is None or self._memory is None:
            return
        numbers = torch.frombuffer(self._kept.numbers, dtype=torch.float32)
        self._server.shards.service.restore(record.shape, numbers, record.position.version)
        self._kept = self._kept._replace(numbers=bytearray())
        self._again = max(0, self._memory.samples - record.position.samples)
        self._server.coordinator.job.repeated_samples += self._again

    # -- what workers do while they are awaited ------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return self.returning is not None

    def awaits(self, worker: int) -> bool:
        """Whether a worker that connects is a member of the job already."""
        return self.returning is not None and self.returning.knows(worker)

    def heard(self, worker: int, message: ToCoordinator | Returned | AskState) -> None:
        """Deal with what a worker says, now or when all are there; with that of others only while any are awaited."""
        if isinstance(message, AskState):
            self._server.coordinator.job.effects.send(worker, state_of(self._server.coordinator))
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
            self._held.append((worker, message))
        self._go_on_if_all_are_there()

    def lost(self, worker: int) -> bool:
        """Whether a worker that is gone was a member that is awaited, so that nobody else need hear of it."""
        if self._memory is not None and self._record is None:  # before the job begins nobody else remembers it
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
                recovery.go_on()
            except UsageError as error:
                self._server.give_up(f"the job cannot go on after its coordinator has died: {error}")
                return
            held, self._held = self._held, []
            for worker in self._new:
                self._server.coordinator.job.connect(worker)
            self._new.clear()
            for worker, message in held:
                try:
                    self._server.hear(worker, message)  # type: ignore[arg-type]
                except PolyrhythmError as error:
                    log.warning("%s", error)

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
        """Whoever has shown no sign of life by now has died, too; others may be in a long step."""
        if self.returning is None:
            return
        for worker in [worker for worker in self.returning.awaited if not self._server.there(worker)]:
            self.returning.lost(worker)
        self._go_on_if_all_are_there()
        self._server.loop.call_later(REFRESH_S, self._give_up_waiting)
