"""Workers hear of nothing that the next coordinator would not know, here or at a standby; at random, in memory."""

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from polyrhythm.core.workload import WorkloadState
from polyrhythm.runtime.checkpoint.manifest import Position
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.standby_link import StandbyLink
from polyrhythm.runtime.coordinator.recovery.writer import RecordWriter
from polyrhythm.runtime.coordinator.state_holders import HoldersRecord
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.standby_protocol import GotBytes, KeepRecord, KeptRecord, Ping, Pong, RecordBytes
from polyrhythm.runtime.wire.shard_protocol import StateShape
from tests.runtime.coordinator.recovery.guarded_job import HANG_AFTER_S, GuardedServer, Time, connected

DECODER = msgspec.msgpack.Decoder(JobRecord)
POSITION = Position(0, 0, 0, 0, 0, WorkloadState(8, 8, 0, ()), Ready(0, 8, 1))


class NumberedCoordinator:
    """One whose records are numbered, as the `run`, in the order of what workers are told."""

    def __init__(self) -> None:
        self.now = self.learnings = 0
        self.on_servers = self.entering = False
        self.job = SimpleNamespace(has_position=True)

    def record(self, config: JobConfig, stand: Stand, started_s: float) -> JobRecord:
        return JobRecord(
            config, stand, started_s, 1, self.now, "bsp", "", "bsp", "", POSITION, {}, (), (), HOLDERS, None
        )

    @property
    def learned(self) -> dict[str, Any]:
        return {"state": str(self.learnings)}


HOLDERS = HoldersRecord("workers", (), (), (), (), (), False, False, ())


class ServerParts:
    """Servers of parameters, of which those in other processes keep their parts when the test lets them."""

    def __init__(self, memory: RecoveryMemory, others: int) -> None:
        self.memory, self.others = memory, list(range(1, others + 1))
        self.pending: deque[tuple[int, int]] = deque()
        self.kept: Callable[[int], None] = lambda _: None
        self.service = SimpleNamespace(shard=object(), state=self._state)
        self._numbers = 0

    def _state(self) -> tuple[StateShape, list[memoryview]]:
        self._numbers += 1
        return StateShape(), [memoryview(b"%d" % self._numbers)]

    def keep(self, number: int) -> None:
        self.pending.extend((part, number) for part in self.others)

    def advance(self) -> None:
        if self.pending:
            part, number = self.pending.popleft()
            self.memory.write_part(part, number, b"part", [memoryview(b"numbers")])
            if part == self.others[-1]:
                self.kept(number)


class PlayedStandby:
    """It keeps what it gets when the test lets it, and knows the newest record that it has confirmed."""

    def __init__(self, channel: Any) -> None:
        self.channel, self.newest = channel, -1
        self.inbox: deque[Any] = deque()
        channel.handler = self

    def received(self, message: Any) -> None:
        self.inbox.append(message)

    def destination(self, message: Any, about: Any) -> memoryview:
        return memoryview(bytearray(about.nbytes))

    def lost(self, reason: str) -> None:
        self.inbox.clear()

    def advance(self) -> None:
        match self.inbox.popleft() if self.inbox else None:
            case Ping(number=number):
                self.channel.send(Pong(number))
            case RecordBytes():
                self.channel.send(GotBytes())
            case KeepRecord(number=number, record=record):
                self.newest = DECODER.decode(record).run
                self.channel.send(KeptRecord(number))


class WrittenJob(GuardedServer):
    """A job at whose coordinator anything happens, in any order."""

    def __init__(self, seed: int) -> None:
        self.chance, self.time = random.Random(seed), Time()
        super().__init__(self.time, 3)
        self.memory = RecoveryMemory.create(parts := self.chance.choice((1, 1, 3)))
        self.coordinator: Any = NumberedCoordinator()
        self.shards: Any = ServerParts(self.memory, parts - 1)
        self.writer = RecordWriter(self.memory, self)
        self.link: StandbyLink | None = None
        self.standby: PlayedStandby | None = None
        self.told: list[int] = []
        if self.chance.random() < 0.3:  # a coordinator before had one
            self.writer.await_standby(((1,), (2,)))
        self.worker: Any = SimpleNamespace(send=self._hear)

    def _hear(self, what: int) -> None:
        """A worker is told of what was the newest when it was said."""
        awaited = self.link is None and self.writer.has_standby
        assert not awaited or not self.writer._writing
        kept = self.memory.read()
        assert kept is not None
        assert DECODER.decode(kept.record).run >= what
        if self.standby is not None and self.standby.newest >= 0 and self.link is not None and not self.link.gone:
            assert self.standby.newest >= what
        self.told.append(what)

    def act(self) -> None:
        acts = (self.say, self.say, self.refresh, self.shards.advance, self.shards.advance, self.advance, self.advance)
        self.chance.choice((*acts, self.advance, self.come, self.go, self.move))()
        self.time.run(self.time.now_s + self.chance.choice((0.0, 0.02)))

    def say(self) -> None:
        if self.chance.random() < 0.5:
            self.coordinator.now += 1
            self.writer.note("stepping")
        if self.writer.record is not None:
            self.writer.send(self.worker, self.coordinator.now)

    def refresh(self) -> None:
        self.coordinator.learnings += 1
        self.writer.refresh()

    def advance(self) -> None:
        if self.standby is not None:
            self.standby.advance()

    def come(self) -> None:
        """The standby, again if it was there before."""
        if self.chance.random() < 0.3:
            ours, theirs = connected(self.time)
            self.standby = PlayedStandby(theirs)
            self.link = self.writer.admit(ours)  # type: ignore[arg-type]
            ours.handler = self.link

    def go(self) -> None:
        if self.standby is not None and self.chance.random() < 0.2:
            self.standby.channel.close()

    def move(self) -> None:
        """The parameters, from workers to servers or back."""
        if not self.writer._writing:
            self.coordinator.on_servers = not self.coordinator.on_servers

    def settle(self) -> None:
        """All that is under way comes to its end."""
        for _ in range(60):
            self.shards.advance()
            self.advance()
            self.time.run(self.time.now_s + 0.02)
        self.time.run(self.time.now_s + 2 * HANG_AFTER_S)  # of a standby that has not come back


@pytest.mark.parametrize("seed", range(60))
def test_workers_hear_of_what_is_kept_and_of_all_of_it(seed: int) -> None:
    job = WrittenJob(seed)
    for _ in range(300):
        job.act()
    job.settle()
    job.writer.send(job.worker, job.coordinator.now)
    assert job.told == sorted(job.told)
    assert job.told[-1] == job.coordinator.now
    assert not job.writer._writing
    assert job.writer._held is None


def test_nothing_is_written_of_a_job_that_all_have_left() -> None:
    """The servers are further than where the last worker stood."""
    job = WrittenJob(0)
    job.coordinator.on_servers = True
    job.writer.note("stepping")
    job.settle()
    before = job.memory.read()
    job.coordinator.job.has_position = False
    job.writer.write_again()
    after = job.memory.read()
    assert before is not None
    assert after is not None
    assert after.record == before.record
    assert job.writer.record is not None
