"""Workers that die while the group of a phase is being built, at a stated point: the others go on, and nothing is lost.

Every sample is a coordinate of the model: it is zero until a step with this sample is in the parameters.
"""

import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.runtime.collectives import gloo_connections, membership, peer_sockets
from polyrhythm.runtime.collectives.gloo_connections import GlooSockets
from polyrhythm.runtime.collectives.hosts import leaders
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Entered
from polyrhythm.runtime.worker import client
from polyrhythm.runtime.worker.client import CoordinatorClient
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.testing.coordinates import SampleNumbers, SampleWeights
from tests.runtime.jobs import job
from tests.runtime.pretended_hosts import live_on

FOREVER = timedelta(hours=1)
"""Nobody is let go by a limit, after which all would be well again."""

WORKERS = 4
SAMPLES = 400

AMONG_LEADERS = "with its host's others, on its way to other hosts"
"""Of a job whose ranks are on two hosts."""

POINTS: dict[str, tuple[Any, str]] = {
    "told of the phase": (CoordinatorClient, "meet"),
    "before gloo": (gloo_connections, "find_devices"),
    "connected by gloo": (GlooSockets, "meet"),
    "before the shared memory": (membership, "form_exchanges"),
    AMONG_LEADERS: (leaders, "build_gloo"),
    "with its address known": (peer_sockets, "call"),
    "before it agrees": (DDPExchange, "agree"),
    "before it uploads": (CoordinatorClient, "upload"),
    "inside": (CoordinatorClient, "send"),
}
"""What a worker is about to call when it dies; inside, it has said that it has entered."""


@dataclass
class Death:
    """A rank dies at a point of its way into a phase; another one may come late to it."""

    rank: int
    point: str
    phase: int = 2
    late: int | None = None


def prepare(death: Death) -> None:
    """Let this process die."""
    seen = 0
    meet, (owner, name) = CoordinatorClient.meet, POINTS[death.point]

    def note(self: CoordinatorClient, exchange: DDPExchange, members: Any, phase: int, gathers: bool = False) -> None:
        nonlocal seen
        seen = phase
        if death.point == "told of the phase":
            end_at(phase)
        meet(self, exchange, members, phase, gathers)

    def end_at(phase: int) -> None:
        if phase == death.phase:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        end_at(death.phase if name == "upload" else seen)  # nobody uploads before, and perhaps they need not meet
        return call(*args, **options)

    def after_entering(self: CoordinatorClient, message: Any) -> None:
        send(self, message)
        if isinstance(message, Entered):
            end_at(message.phase)

    send = CoordinatorClient.send
    CoordinatorClient.meet = note  # type: ignore[method-assign]
    if death.point == "inside":
        CoordinatorClient.send = after_entering  # type: ignore[method-assign]
    elif death.point != "told of the phase":
        called = getattr(owner, name)
        setattr(owner, name, lambda *args, **options: before(called, *args, **options))


def come_late(name: str, victim: int) -> None:
    """Let this process form its first group when the coordinator knows already that a member of it is gone."""
    meet = CoordinatorClient.meet

    def late(self: CoordinatorClient, *arguments: Any) -> None:
        while victim in steer.status(steer.at(name)).members:
            pass
        meet(self, *arguments)

    CoordinatorClient.meet = late  # type: ignore[assignment, method-assign]


def train(rank: int, name: str, teller: int, following: str | None, deaths: list[Death]) -> tuple[Tensor, Any]:
    """One epoch with a switch in it; without one, rank 1 dies by itself in the middle."""
    if any(death.point == AMONG_LEADERS for death in deaths):
        live_on(rank // 2)
    for death in deaths:
        if death.rank == rank:
            prepare(death)
        elif death.late == rank:
            come_late(name, death.rank)
    SwitchGroup.set_generation = partialmethod(SwitchGroup.set_generation, connect_timeout=FOREVER)  # type: ignore
    client.STORE_TIMEOUT = FOREVER
    model = SampleWeights(SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:
        for number, indices in enumerate(session.loader(SampleNumbers(SAMPLES), batch_size=2)):
            if number == 3 and rank == 1:
                end_or_switch(session, following)
            optimizer.zero_grad()
            model(indices).backward()
            optimizer.step()
        state = steer.status(steer.at(name)) if rank == teller else None
    return model.weight.detach().clone(), state


def end_or_switch(session: Any, following: str | None) -> None:
    if following is None:
        os.kill(os.getpid(), signal.SIGKILL)
    session.switch(following)


def survive(policy: str, following: str | None, *deaths: Death) -> Status:
    """Run the job; the coordinator's last word on it."""
    lost = {death.rank for death in deaths} | ({1} if following is None else set())
    teller = min(set(range(WORKERS)) - lost)
    name = f"deaths-{uuid.uuid4().hex}"
    with job(train, WORKERS, name, teller, following, list(deaths), name=name, policy=policy) as running:
        outcomes = running.join()
    assert {outcome.rank for outcome in outcomes if outcome.exit_code == -signal.SIGKILL} == lost
    kept = [outcome.value for outcome in outcomes if outcome.rank not in lost]
    assert all(torch.equal(weights, kept[0][0]) for weights, _ in kept)
    (weights, state) = next(value for value in kept if value[1] is not None)
    assert isinstance(state, Status)
    assert state.samples + state.skipped == SAMPLES
    assert int((weights == 0).sum()) == state.skipped < WORKERS
    return state


@pytest.mark.parametrize("point", [point for point in POINTS if point not in ("before it agrees", "before it uploads")])
def test_a_member_dies_on_its_way_into_a_group(point: str) -> None:
    state = survive("asp", "bsp", Death(2, point))
    assert (state.policy, state.phase) == ("bsp", 3)


def test_who_comes_late_hears_that_another_is_gone() -> None:
    """Under asp nobody has formed a group before, so that there is none to be given up."""
    assert survive("asp", "bsp", Death(2, "connected by gloo", late=0)).phase == 3


@pytest.mark.parametrize("point", ["told of the phase", "with its address known", "before it agrees", "inside"])
def test_a_member_dies_while_they_agree_on_what_the_servers_get(point: str) -> None:
    state = survive("local:4", "ssp:3", Death(2, point))
    assert (state.policy, state.phase) == ("ssp:3", 2 if point == "inside" else 3)


@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_the_one_dies_whose_state_goes_to_the_servers(policy: str) -> None:
    state = survive(policy, "asp", Death(0, "before it uploads"))
    assert (state.policy, state.phase) == ("asp", 3)


@pytest.mark.parametrize("point", ["connected by gloo", "inside"])
def test_a_second_one_dies_after_the_first(point: str) -> None:
    """One in the middle of its steps, and one as the others form the group without it."""
    state = survive("selsync:0.05", None, Death(2, point))
    assert state.phase == 3


def test_one_after_the_other_dies_on_the_way() -> None:
    state = survive("local:4", "ssp:3", Death(2, "connected by gloo"), Death(3, "before it agrees", phase=3))
    assert (state.policy, state.phase) == ("ssp:3", 4)
