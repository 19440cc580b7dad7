"""The coordinator as its visitors see it."""

import logging
import socket
from typing import Any

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import start_coordinator
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address, Cut
from polyrhythm.runtime.worker.client import HeartbeatThread
from tests.runtime.jobs import job


def make_server(**settings: Any) -> CoordinatorServer:
    made = JobConfig(**{"job": f"coordinator-{id(settings)}", **settings})
    return CoordinatorServer(made, listen(coordinator_address(made.job)))


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"cannot listen on {address}: the port is in use; choose another"):
            start_coordinator(JobConfig(job="coordinator-taken", listen=(address,)))


def test_beyond_this_host_only_with_a_token() -> None:
    with pytest.raises(UsageError, match=r"tcp:0\.0\.0\.0:0 can be reached from other hosts; give the job a token"):
        start_coordinator(JobConfig(job="coordinator-open", listen=("tcp:0.0.0.0:0",)))


def test_a_hub_to_which_nobody_comes_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        make_server(patience_s=0.0).run()
    assert "has no workers" in caplog.text


def idle(rank: int) -> None:
    """A worker that is not one."""


def test_visitors() -> None:
    with job(idle, 1, name="visited", token="secret") as running:
        state = steer.status(steer.at("visited", token="secret"))
        assert (state.policy, state.phase, state.epoch, state.members) == ("bsp", 0, -1, ())
        assert steer.switch(steer.at("visited", token="secret"), "asp").switching_to == "asp"
        with pytest.raises(UsageError, match="the token is wrong"):
            steer.status(steer.at("visited"))
        with pytest.raises(UsageError, match=r"rank 0 is not part of this job, or its heartbeat is here already"):
            HeartbeatThread(Address(coordinator_address("visited"), "visited", "secret"), 0, 1.0, ignore)
        steer.absent(steer.at("visited", token="secret"), 0)
        running.join()


def ignore(message: Cut) -> None:
    """Nobody cuts here."""
