"""The hub as its visitors see it."""

import logging
import socket
from typing import Any

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime import steer
from polyrhythm.runtime.channel import listen
from polyrhythm.runtime.control import Address, Cut
from polyrhythm.runtime.hub import Hub
from polyrhythm.runtime.job_config import JobConfig, hub_address
from polyrhythm.runtime.link import PulseThread
from polyrhythm.runtime.rendezvous import start_hub
from tests.runtime.jobs import job


def make_hub(**settings: Any) -> Hub:
    made = JobConfig(**{"job": f"hub-{id(settings)}", **settings})
    return Hub(made, listen(hub_address(made.job)))


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PolyrhythmError, match=rf"cannot listen on {address}: the port is in use; choose another"):
            start_hub(JobConfig(job="hub-taken", listen=(address,)))


def test_beyond_this_host_only_with_a_token() -> None:
    with pytest.raises(
        PolyrhythmError, match=r"tcp:0\.0\.0\.0:0 can be reached from other hosts; give the job a token"
    ):
        start_hub(JobConfig(job="hub-open", listen=("tcp:0.0.0.0:0",)))


def test_a_hub_to_which_nobody_comes_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        make_hub(patience_s=0.0).run()
    assert "has no workers" in caplog.text


def idle(rank: int) -> None:
    """A worker that is not one."""


def test_visitors() -> None:
    with job(idle, 1, name="visited", token="secret") as running:
        state = steer.status(steer.at("visited", token="secret"))
        assert (state.policy, state.phase, state.epoch, state.members) == ("bsp", 0, -1, ())
        assert steer.switch(steer.at("visited", token="secret"), "asp").switching_to == "asp"
        with pytest.raises(PolyrhythmError, match="the token is wrong"):
            steer.status(steer.at("visited"))
        with pytest.raises(PolyrhythmError, match=r"rank 0 is not part of this job, or its pulse is here already"):
            PulseThread(Address(hub_address("visited"), "visited", "secret"), 0, 1.0, ignore)
        steer.absent(steer.at("visited", token="secret"), 0)
        running.join()


def ignore(message: Cut) -> None:
    """Nobody cuts here."""
