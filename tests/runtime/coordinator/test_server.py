"""The coordinator as its visitors see it."""

import errno
import logging
import os
import resource
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.connections import end_unbegun
from polyrhythm.runtime.coordinator.members.proposal import nobody
from polyrhythm.runtime.coordinator.process import prepare
from polyrhythm.runtime.coordinator.server import MOST_BACKLOG, CoordinatorServer
from polyrhythm.runtime.coordinator.worker_acceptor import WorkerAcceptor
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import start_coordinator
from polyrhythm.runtime.wire.connection import Channel, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.recovery.removed import REMOVED, tell_removed
from polyrhythm.runtime.wire.shard_protocol import Hello, Pull, Rejected, Role
from polyrhythm.testing.processes import run_workers
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
    assert "has no workers, and none has joined within 0 s; it ends" in caplog.text


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


def test_however_much_was_observed_answers_go_first() -> None:
    """Written down at once, it took the time of the answer that the last of it waited for."""
    server = make_server()
    for rank in range(MOST_BACKLOG):
        server.record(rank, Pull(0))
    assert len(server.recorder.backlog) == MOST_BACKLOG
    server.loop.step(0.0)
    assert not server.recorder.backlog
    server.loop.call_later(0.0, server.loop.stop)
    server.run()


def limits_of_a_coordinator(_: int) -> tuple[int, int]:
    """Where the user has allowed fewer descriptors than could be had."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
    prepare()
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_coordinator_may_open_all_that_a_process_may() -> None:
    ((most, limit),) = run_workers(limits_of_a_coordinator, 1)
    assert most == limit


@pytest.mark.parametrize(("epoch", "ends"), [(-1, ["no room"]), (0, [])])
def test_a_job_that_has_begun_goes_on_without_a_visitor(epoch: int, ends: list[str]) -> None:
    said = list[str]()
    job: Any = SimpleNamespace(coordinator=SimpleNamespace(job=SimpleNamespace(epoch=epoch)), give_up=said.append)
    end_unbegun(job, "no room")
    assert said == ends


def test_a_worker_for_which_there_are_no_descriptors_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    server: Any = SimpleNamespace(shards=SimpleNamespace(service=SimpleNamespace(received=refuse, destination=refuse)))
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, msgspec.msgpack.Decoder(Rejected), "worker 1")
        acceptor = WorkerAcceptor(server, 1, channel)
        for call in (
            partial(acceptor.received, Pull(0)),
            partial(acceptor.destination, Pull(0), Payload("float32", 1)),
        ):
            with pytest.raises(OSError, match="Too many open files"):
                call()
            assert b"rank 1 cannot be served: too many open files: " in theirs.recv(4096)
        channel.close()
    assert all("raise ulimit -n, or use fewer workers; it is out of the job" in text for text in caplog.messages)


def join_as(role: Role, name: str) -> None:
    loop = Loop()
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Rejected)
    try:
        join(loop, coordinator_address(name), Hello(name, role, 0), decoder, Log())
    finally:
        loop.close()
