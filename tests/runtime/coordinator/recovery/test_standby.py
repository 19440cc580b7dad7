"""What a standby makes of what it hears, and of what it has missed."""

import socket
from typing import Any
from unittest.mock import patch

import pytest

from polyrhythm.errors import FrameError
from polyrhythm.runtime.coordinator import process
from polyrhythm.runtime.coordinator.recovery.standby import Standby
from polyrhythm.runtime.wire.connection import bind
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.standby_protocol import JobOver, KeepRecord, RecordBytes
from tests.runtime.coordinator.recovery.guarded_job import (
    HANG_AFTER_S,
    PERIOD_S,
    End,
    FollowingStandby,
    GuardedServer,
    Time,
    connected,
)


class Followed:
    """A standby whose coordinator is played by the test."""

    def __init__(self) -> None:
        self.time, self.ends = Time(), list[End]()
        self.following = FollowingStandby(self.time, GuardedServer(self.time, 2).config, self._meet)
        self.standby: Any = self.following.standby

    def _meet(self, standby: Any) -> End:
        ours, theirs = connected(self.time)
        ours.handler, theirs.handler = self, standby
        self.ends.append(ours)
        return theirs

    def received(self, message: Any) -> None:
        """The coordinator says nothing by itself."""

    def lost(self, reason: str) -> None:
        """Nor then."""

    def say(self, message: Any, data: bytes | None = None) -> None:
        about = None if data is None else Payload("uint8", len(data))
        self.ends[-1].send(message, data if data is None else memoryview(data), about)
        self.time.run(self.time.now_s + PERIOD_S / 4)

    def keep(self, number: int, same: bool = False) -> None:
        self.say(KeepRecord(number, b"record", (), same, 0.0, 0, (0,), ((1,),)))


def test_numbers_that_came_in_part_are_forgotten_with_the_coordinator() -> None:
    job = Followed()
    job.say(RecordBytes(0, 0, 4), b"ab")
    job.ends[-1].close()
    job.time.run(job.time.now_s + PERIOD_S)
    assert len(job.ends) == 2
    job.keep(1)
    assert job.standby._numbers == {}


def test_numbers_stay_until_others_come() -> None:
    job = Followed()
    job.say(RecordBytes(0, 0, 4), b"ab")
    job.say(RecordBytes(0, 2, 4), b"cd")
    job.keep(1)
    job.keep(2, same=True)
    assert job.standby._numbers == {0: bytearray(b"abcd")}


@pytest.mark.parametrize("message", [RecordBytes(0, 2, 4), RecordBytes(0, 0, 2**41), RecordBytes(0, 0, 1)])
def test_numbers_that_cannot_be_are_refused(message: RecordBytes) -> None:
    job = Followed()
    with pytest.raises(FrameError, match="the coordinator announced"):
        job.standby.destination(message, Payload("uint8", 2))


@pytest.mark.parametrize("noticed", [False, True])
def test_who_was_stopped_itself_asks_for_the_record_again(noticed: bool) -> None:
    """The coordinator may have gone on without it, and have closed the connection."""
    job = Followed()
    job.keep(1)
    job.standby._forget_if_stopped()
    assert job.standby._newest is not None
    if noticed:
        job.standby.lost("the coordinator closed the connection")
    job.time.now_s += 2 * HANG_AFTER_S
    job.standby._forget_if_stopped()
    assert job.standby._newest is None
    assert job.standby._channel is None
    assert not job.standby._is_silent


def test_the_connection_ends_with_the_job() -> None:
    """So the coordinator knows that the standby has heard of it."""
    job = Followed()
    job.say(JobOver())
    assert job.standby._over
    assert job.ends[-1].closed


def test_an_address_that_somebody_else_has_taken_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Two sockets may have an address as long as neither listens."""
    listener = bind("tcp:127.0.0.1:0")
    with listener, socket.socket() as other, patch.object(Standby, "follow", lambda _: True):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(listener.getsockname())
        other.listen()
        config, first = JobConfig(job="job", standby="tcp:127.0.0.1:0"), Address("tcp:127.0.0.1:1", "job")
        assert process.stand_by(config, first, [listener], RecoveryMemory.create()) == 1
    assert "cannot listen on" in caplog.text


def test_a_coordinator_that_is_gone_before_it_was_met_is_not_awaited(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        first = Address(f"tcp:127.0.0.1:{gone.getsockname()[1]}", "job")
    assert not Standby(JobConfig(job="job"), first, RecoveryMemory.create()).follow()
    assert "this one has nothing to go on from; the job ends" in caplog.text
