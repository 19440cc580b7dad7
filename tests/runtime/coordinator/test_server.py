"""The coordinator as its visitors see it."""

import logging
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.coordinator.stages import nobody
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import start_coordinator
from polyrhythm.runtime.wire.connection import Channel, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.recovery.removed import REMOVED, tell_removed
from polyrhythm.runtime.wire.shard_protocol import Hello, Rejected, Role
from tests.runtime.jobs import job
from tests.runtime.wire.test_connection import Log


def make_server(**settings: Any) -> CoordinatorServer:
    made = JobConfig(**{"job": f"coordinator-{id(settings)}", **settings})
    return CoordinatorServer(made, listen(coordinator_address(made.job)))


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"cannot listen on {address}: the port is in use; choose another"):
            start_coordinator(JobConfig(job="coordinator-taken", listen=(address,), token="secret"))


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_over_tcp_only_with_a_token(host: str) -> None:
    with pytest.raises(UsageError, match=rf"tcp:{host}:0 can be reached by others; give the job a token"):
        start_coordinator(JobConfig(job="coordinator-open", listen=(f"tcp:{host}:0",)))


def test_a_hub_to_which_nobody_comes_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        make_server(patience_s=0.0).run()
    assert "has no workers" in caplog.text


def idle(rank: int) -> None:
    """A worker that is not one."""


def test_visitors() -> None:
    with job(idle, 1, name="visited") as running:
        state = steer.status(steer.at("visited"))
        assert (state.policy, state.phase, state.epoch, state.members) == ("bsp", 0, -1, ())
        assert steer.switch(steer.at("visited"), "asp").switching_to == "asp"
        with pytest.raises(UsageError, match=r"rank 0 is not part of this job"):
            join_as("heartbeat", "visited")
        with pytest.raises(UsageError, match=r"rank 0 is not part of this job"):
            join_as("sums", "visited")
        with pytest.raises(UsageError, match=r"this is the coordinator"):
            join_as("coordinator", "visited")
        steer.absent(steer.at("visited"), 0)
        running.join()


def test_a_switch_before_the_first_worker_is_not_forgotten() -> None:
    server = make_server(patience_s=0.0)
    server.coordinator.choice.propose(parse_policy("asp"), nobody)
    server._adopt(server.config)
    assert server.coordinator.next_policy == parse_policy("asp")
    server.run()


def test_whoever_was_removed_does_not_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REMOVED, str(tmp_path / "removed"))
    server = make_server(patience_s=0.0)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, msgspec.msgpack.Decoder(Rejected), "worker 1")
        tell_removed(1)
        with pytest.raises(UsageError, match="rank 1 was removed from this job"):
            server._admit_worker(channel, Hello(server.config.job, "worker", 1))
        channel.close()
    server.run()


def test_the_end_is_said_once_however_many_come_to_it(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(patience_s=0.0)
    server.give_up("[0] came too late")
    ours, theirs = socket.socketpair()
    with theirs:
        server.channels[1] = Channel(ours, msgspec.msgpack.Decoder(Rejected), "worker 1")
        server.give_up("[0, 1] came too late")
        assert b"[0] came too late" in theirs.recv(4096)
        server.channels.pop(1).close()
    server.run()
    assert [text for text in caplog.messages if "came too late" in text] == ["[0] came too late"]


def join_as(role: Role, name: str) -> None:
    loop = Loop()
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Rejected)
    try:
        join(loop, coordinator_address(name), Hello(name, role, 0), decoder, Log())
    finally:
        loop.close()
