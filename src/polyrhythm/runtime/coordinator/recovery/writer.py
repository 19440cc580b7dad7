"""What a coordinator leaves word of, and when: workers hear of nothing that the next coordinator would not know."""

import logging
import time
from typing import Any, Protocol

import msgspec

from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.coordinator.recovery.standby_link import GuardedJob, Hosts, StandbyLink, ranks_by_host
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.setting_values import seconds

log = logging.getLogger(__name__)

REFRESH_S = 1.0
"""How often what policies have learned is written."""

ENCODER = msgspec.msgpack.Encoder()


class RecordedJob(GuardedJob, Protocol):
    """Whose records are written; see `CoordinatorServer`."""

    coordinator: RecoverableCoordinator
    shards: ShardGroup

    @property
    def started_s(self) -> float:
        """When the job's clock was 0."""


class RecordWriter:
    """Writes one record after the other.

    A record is kept when all servers of parameters have kept their parts of it, which they copy in the same moment:
    between the same two steps; and when the standby has it, if there is one. Until one is kept that says where the job
    stands now, nothing is said to workers.

    Args:
        memory: where to.
        job: of which.

    Attributes:
        record: the newest, once there is one.
    """

    def __init__(self, memory: RecoveryMemory, job: RecordedJob) -> None:
        self.record: JobRecord | None = None
        self._memory, self._job = memory, job
        self._written_s = time.monotonic()
        self._number = self._parts = 0
        self._writing = self._due = False
        self._standby: StandbyLink | None = None
        self._held: list[tuple[Channel, Any]] | None = None
        """What is to be said to workers; None: it is said at once."""
        job.shards.kept = self._kept

    def note(self, stand: Stand) -> None:
        """The job stands there, and its workers do not know it yet."""
        job = self._job
        self.record = job.coordinator.record(job.config, stand, job.started_s)
        self._due = True
        if not self._writing:
            self._write()
        if self._writing and self._held is None:
            self._held = []

    def await_standby(self, hosts: Hosts) -> None:
        """The coordinator before had one, which knows of these hosts."""
        self._standby = StandbyLink(None, self._job, self._memory, self._complete, hosts)

    def admit(self, channel: Channel) -> StandbyLink:
        """The standby has come: it gets the newest record, and all that follow; it may have been here before."""
        if self._standby is not None and self._standby.drop():
            self._writing = False
        self._standby = StandbyLink(channel, self._job, self._memory, self._complete)
        log.info("the standby on %s is there", self._job.config.standby)
        self._job.loop.call_later(0.0, self.write_again)
        return self._standby

    def close(self) -> None:
        """The job is over."""
        if self._standby is not None and not self._standby.gone:
            self._standby.end()

    def send(self, channel: Channel, message: Any) -> None:
        """Say something to a worker when it may know it."""
        if self._held is None:
            channel.send(message)
        else:
            self._held.append((channel, message))

    @property
    def holds_back(self) -> bool:
        """Whether nothing is said to workers now."""
        return self._held is not None

    def refresh(self) -> None:
        """What a policy learns from the times of its workers none of these knows, nor what the servers have."""
        record, job = self.record, self._job
        if record is None or self._writing:
            return
        if job.coordinator.on_servers:
            if not job.coordinator.entering and (self._is_old or record.guarded != self._is_guarded):
                self.write_again()
            return
        refreshed = msgspec.structs.replace(record, guarded=self._is_guarded, **job.coordinator.learned)
        if refreshed != record:
            self.record = refreshed
            self._write()

    @property
    def period_s(self) -> float:
        """How often it is to be refreshed."""
        return min(REFRESH_S, seconds(self._job.config.snapshot))

    @property
    def _is_old(self) -> bool:
        """Whether the newest snapshot will be older than it may be at the next look."""
        return time.monotonic() + self.period_s / 2 >= self._written_s + seconds(self._job.config.snapshot)

    def write_again(self) -> None:
        """Where workers are told of nothing new; the servers may have gone on, and policies have learned."""
        record, job = self.record, self._job
        if record is None or self._writing:
            self._due = self._writing
            return
        if job.coordinator.on_servers and not job.coordinator.entering:
            if not job.coordinator.job.has_position:
                return  # nobody goes on from there
            self.record = job.coordinator.record(job.config, record.stand, job.started_s)
        else:
            self.record = msgspec.structs.replace(record, **job.coordinator.learned)
        self._write()

    def _write(self) -> None:
        """The newest record; where the servers have the state, with that."""
        assert self.record is not None, "there is something to write"
        shards, self._due = self._job.shards, False
        numbers, others = list[memoryview](), 0
        if self._job.coordinator.on_servers and shards.service.shard is not None:
            shape, numbers = shards.service.state()
            self.record, others = msgspec.structs.replace(self.record, shape=shape), len(shards.others)
        self.record = msgspec.structs.replace(self.record, hosts=self._hosts, guarded=self._is_guarded)
        number = self._memory.write(ENCODER.encode(self.record), numbers, others)
        self._written_s = time.monotonic()
        self._number, self._parts = number, others
        self._writing = bool(others) or self.has_standby
        if others:
            shards.keep(number)
        elif self.has_standby:
            self._replicate()

    @property
    def has_standby(self) -> bool:
        """Whether it gets the records."""
        return self._standby is not None and not self._standby.gone

    @property
    def _is_guarded(self) -> bool:
        """Whether a standby may take over."""
        return self._standby is not None and not self._standby.ended

    @property
    def _hosts(self) -> Hosts:
        """Of the others, as far as a standby knows."""
        if self._standby is None or self._standby.ended:
            return ()
        return self._standby.hosts if self._standby.gone else ranks_by_host(self._job.channels)[1]

    def _replicate(self) -> None:
        assert self._standby is not None, "it is there"
        self._standby.replicate(self._number, self._parts)

    def _kept(self, number: int) -> None:
        """All servers have their parts of the record of this number."""
        if number == self._number and self.has_standby:
            self._replicate()
        else:
            self._complete()

    def _complete(self) -> None:
        """The record is kept wherever it should be."""
        self._writing = False
        if self._due:
            self.write_again()
        if not self._writing:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for channel, message in held:
            channel.send(message)
