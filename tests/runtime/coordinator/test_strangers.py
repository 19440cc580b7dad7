"""What a coordinator makes of odd messages on its sockets: of strangers, of those who steer it, and of its workers."""

import random
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.wire.connection import Channel, address_of, connect, listen
from polyrhythm.runtime.wire.control_protocol import AskStatus, Status
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import encode
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import JobInfo, SwitchTo, ToWorker
from polyrhythm.runtime.wire.shard_protocol import FromShard, Hello, Rejected, Role
from tests.runtime.odd_messages import KINDS, odd
from tests.runtime.wire.test_connection import Log

ANSWERS: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromShard | ToWorker | JobInfo | Status)
NAMES, RANKS = count(), count(100)

SYS_EXIT = """
import sys
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()
sys.exit(3)
"""


class House:
    """A coordinator that is served step by step, and who talks to it."""

    def __init__(self, **settings: Any) -> None:
        name = f"strangers-{next(NAMES)}"
        listeners = listen(coordinator_address(name)), listen("tcp:127.0.0.1:0")
        self.address = address_of(listeners[1])
        config = JobConfig(job=name, token="secret", workers=2, **settings)
        self.server = CoordinatorServer(config, *listeners)

    @property
    def loop(self) -> Loop:
        return self.server.loop

    def enter(self, role: Role, rank: int) -> tuple[Channel, Log]:
        log = Log()
        hello = Hello(self.server.config.job, role, rank)
        return join(self.loop, self.address, hello, ANSWERS, log, token="secret"), log

    def status(self) -> Status:
        """The answer to somebody who asks, as long as the coordinator stands."""
        answer: Status = self.ask(AskStatus())
        return answer

    def ask(self, message: Any) -> Any:
        channel, log = self.enter("control", 0)
        channel.send(message)
        assert self.loop.run_until(lambda: log.messages, 5.0)
        channel.close()
        return log.messages[0]

    def settle(self) -> None:
        for _ in range(5):
            self.loop.step(0.0)

    def close(self) -> None:
        self.server.heartbeats.stop()
        self.loop.close()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@pytest.mark.parametrize("role", ["nobody", "control", "worker", "heartbeat", "sums"])
def test_whatever_is_said_the_coordinator_stands(role: str, house: House) -> None:
    dice = random.Random(role)
    for kind in KINDS:
        for tame in (True, False):
            try:
                data = encode(odd(kind, dice, tame))
            except (ValueError, OverflowError):  # which cannot be said
                continue
            say(house, role, data)
            assert isinstance(house.status(), Status), kind


def say(house: House, role: str, data: bytes) -> None:
    """In a connection of its own, to which a worker's belongs."""
    if role == "nobody":
        with connect(house.address, 5.0) as sock:
            sock.sendall(data)
            house.settle()
        house.settle()
        return
    rank = next(RANKS)
    first, log = house.enter("worker", rank)
    channel = first if role == "worker" else house.enter(role, rank)[0]  # type: ignore[arg-type]
    channel.socket.setblocking(True)
    channel.socket.sendall(data)
    house.settle()
    del log
    for each in {channel, first}:
        each.close()
    house.settle()


@pytest.mark.parametrize("role", ["worker", "control"])
def test_who_is_turned_away_hears_why(role: Role, house: House) -> None:
    rank = next(RANKS)
    channel, log = house.enter(role, rank)
    channel.send(msgspec.convert({"type": "Stepped", "step": 0, "samples": 1, "step_s": 1.0}, SteppedLike))
    assert house.loop.run_until(lambda: log.reasons, 5.0)
    if role == "worker":
        (said,) = [each.reason for each in log.messages if isinstance(each, Rejected)]
        assert said == f"rank {rank} sent Stepped in phase 0"
    assert isinstance(house.status(), Status)


class SteppedLike(msgspec.Struct, tag="Stepped"):
    """As `Stepped`, from somebody who has not joined the phase."""

    step: int
    samples: int
    step_s: float


def test_a_policy_file_is_not_run_unless_the_job_allows_it(tmp_path: Path) -> None:
    file, spec = tmp_path / "evil.py", f"{tmp_path}/evil.py:Mine"
    file.write_text(SYS_EXIT)
    house = House()
    answer = house.ask(SwitchTo(spec))
    assert isinstance(answer, Rejected)
    assert "is code that this job does not run yet; start the job with --allow-policy-files" in answer.reason
    assert not file.with_suffix(".ran").exists()
    worker, _ = house.enter("worker", 0)
    worker.send(SwitchTo(spec))
    notices = house.server.coordinator.choice.notices
    assert house.loop.run_until(lambda: notices, 5.0)
    assert "is code that this job does not run yet" in notices[0]
    assert not file.with_suffix(".ran").exists()
    house.close()


def test_a_policy_file_that_ends_its_process_does_not_end_the_coordinator(tmp_path: Path) -> None:
    file = tmp_path / "evil.py"
    file.write_text(SYS_EXIT)
    house = House(allow_policy_files=True)
    answer = house.ask(SwitchTo(f"{file}:Mine"))
    assert isinstance(answer, Rejected)
    assert "cannot be loaded: SystemExit(3)" in answer.reason
    assert file.with_suffix(".ran").exists()
    assert isinstance(house.status(), Status)
    house.close()


def test_a_spec_of_parentheses_is_refused(house: House) -> None:
    answer = house.ask(SwitchTo("(" * 2000 + ")" * 2000))
    assert isinstance(answer, Rejected)
    assert "nested too deeply" in answer.reason


def test_a_local_user_without_the_token_does_not_get_in(house: House) -> None:
    hello = Hello(house.server.config.job, "control", 0)
    for token in ("", "guess"):
        with pytest.raises(UsageError, match="token"):
            join(house.loop, house.address, hello, ANSWERS, Log(), token=token)


def test_the_store_listens_on_loopback_in_a_job_on_one_host(house: House) -> None:
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    port = f":{house.server._store.port:04X} "
    places = [line.split()[1] for line in listening.splitlines() if port in line.split()[1] + " " and " 0A " in line]
    assert places == [f"0100007F{port.strip()}"]
    assert socket.inet_ntoa(bytes.fromhex("0100007F")[::-1]) == "127.0.0.1"
