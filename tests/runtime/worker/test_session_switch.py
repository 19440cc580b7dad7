"""Switches in the middle of an epoch, loops that are left early, and jobs that are resumed, on real workers."""

import os
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.policies import is_built_in, parse_policy
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Address
from tests.runtime.jobs import Numbered, Seen, flat, job, make_model, make_optimizer, run_job, step

SAMPLES = 90
TOUR = ["bsp", "local:3", "bsp", "asp", "bsp", "k-sync:2", "bsp"]
TOUR += ["local:3", "asp", "local:3", "k-sync:2", "local:3", "asp", "k-sync:2", "asp", "bsp"]


def ask_for(session: polyrhythm.Session, policy: str) -> None:
    """Stay here until it is decided, where others must have said first that they have the policy."""
    if is_built_in(parse_policy(policy)):
        session.switch(policy)
    else:
        steer.switch(msgspec.json.decode(os.environ[COORDINATOR], type=Address), policy)


def switch_in_every_epoch(rank: int, tour: list[str], options: dict[str, Any]) -> list[Seen]:
    """Every worker asks for the next policy before its first step of an epoch, so nobody is through with it before."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    epochs = []
    with polyrhythm.session(model, optimizer) as session:
        for following in tour[1:]:
            seen = Seen()
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=3, **options)):
                if number == 0:
                    ask_for(session, following)
                step(model, optimizer, x, y)
                seen.indices += index.tolist()
            seen.policy, seen.parameters = session.policy, flat(model)
            epochs.append(seen)
    return epochs


@pytest.mark.parametrize(
    ("tour", "options"),
    [(TOUR, {}), (["bsp", "asp", "local:3", "k-sync:2", "bsp"], {"num_workers": 2, "multiprocessing_context": "fork"})],
    ids=["every direction", "forked loaders"],
)
def test_switches_in_the_middle_of_an_epoch(tour: list[str], options: dict[str, Any]) -> None:
    by_rank = run_job(switch_in_every_epoch, 3, tour, options, policy=tour[0])
    for number, (before, after) in enumerate(pairwise(tour)):
        epoch = [ranks[number] for ranks in by_rank]
        assert {seen.policy for seen in epoch} == {after}, f"{before} -> {after}"
        assert all(torch.equal(seen.parameters, epoch[0].parameters) for seen in epoch), f"{before} -> {after}"
        counts = Counter(index for seen in epoch for index in seen.indices)
        assert set(counts) == set(range(SAMPLES)), f"{before} -> {after}"
        cancels = any(parse_policy(policy).traits.cancels for policy in (before, after))
        assert cancels or set(counts.values()) == {1}, f"{before} -> {after}"


def test_the_tour_has_every_direction() -> None:
    policies = set(TOUR)
    assert set(pairwise(TOUR)) == {(a, b) for a in policies for b in policies if a != b}


def leave_early(rank: int, name: str, leavers: tuple[int, ...]) -> tuple[list[list[int]], Tensor, Status | None]:
    """Some leave the loop over the first epoch in its third step; indices of each epoch, the end, the coordinator's
    figures.
    """
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    epochs: list[list[int]] = []
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(2):
            epochs.append([])
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=3)):
                if epoch == 0 and number == 2 and rank in leavers:
                    break
                step(model, optimizer, x, y)
                epochs[-1] += index.tolist()
        state = steer.status(steer.at(name)) if rank == 0 else None
    return epochs, flat(model), state


@pytest.mark.parametrize("leavers", [(0, 1, 2), (1,)], ids=["all", "one"])
@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp"])
def test_a_loop_may_be_left_early(policy: str, leavers: tuple[int, ...]) -> None:
    name = f"early-{uuid.uuid4().hex}"
    with job(leave_early, 3, name, leavers, name=name, policy=policy) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), "\n".join(outcome.traceback for outcome in outcomes)
    (epochs, parameters, state), *others = (outcome.value for outcome in outcomes)
    assert all(torch.equal(parameters, theirs) for _, theirs, _ in others)
    last = Counter(index for found in (epochs, *(e for e, _, _ in others)) for index in found[1])
    assert last == Counter(range(SAMPLES)), "all are there in the next epoch"
    assert isinstance(state, Status)
    assert state.samples + state.skipped == 2 * SAMPLES
    assert (state.skipped > 0) == (len(leavers) == 3), "what is left is skipped only if nobody is there"


def stop_early(rank: int) -> int:
    """The first rank leaves loop and session; the others finish."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05)
    with polyrhythm.session(model, optimizer) as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch_size=3)):
            if rank == 0 and number == 1:
                break
            step(model, optimizer, x, y)
    return int(session.metrics["samples"])


def test_a_session_may_be_left_early() -> None:
    first, *others = run_job(stop_early, 3, policy="bsp")
    assert first == 3
    assert sum(others) == SAMPLES - first


def resume(rank: int, policy: str, epochs: int, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
    """Train so many epochs, perhaps from a checkpoint; the last one."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    with polyrhythm.session(model, optimizer, policy=policy, epochs=4) as session:
        if checkpoint:
            session.load_state_dict(checkpoint["session"])
        loader = session.loader(Numbered(SAMPLES), batch_size=3, seed=7)
        for _ in range(epochs):
            for x, y, _index in loader:
                step(model, optimizer, x, y)
        state = session.state_dict()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "session": state}


@pytest.mark.parametrize(("policy", "workers"), [("bsp", 2), ("asp", 1), ("post-local:2", 2)])
def test_a_resumed_job_goes_on_as_if_it_had_never_stopped(policy: str, workers: int) -> None:
    whole = run_job(resume, workers, policy, 4, None, policy=policy, epochs=4)[0]
    half = run_job(resume, workers, policy, 2, None, policy=policy, epochs=4)[0]
    assert half["session"] == {"epoch": 1, "policy": policy}
    rest = run_job(resume, workers, policy, 2, half, policy=policy, epochs=4)[0]
    assert rest["session"] == whole["session"]
    for key, expected in whole["model"].items():
        torch.testing.assert_close(rest["model"][key], expected)


def test_a_resumed_job_heeds_the_policy_that_its_command_names() -> None:
    half = run_job(resume, 1, "bsp", 1, None)[0]
    assert run_job(resume, 1, "bsp", 1, half, policy="asp")[0]["session"] == {"epoch": 1, "policy": "asp"}
    assert run_job(resume, 1, "asp", 1, half)[0]["session"] == {"epoch": 1, "policy": "bsp"}


def switch_to_mine(rank: int, spec: str) -> str:
    """What happens to a worker whose user's own policy breaks the contract while the job runs."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05)
    with polyrhythm.session(model, optimizer, policy="asp") as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch_size=3)):
            if rank == 0 and number == 0:
                session.switch(spec)
            step(model, optimizer, x, y)
    return session.policy


MINE = """
from polyrhythm.core import Cluster, Policy, Proceed, Report, Traits

class Eager(Policy):
    \"\"\"Lets a worker go on that is running.\"\"\"
    name, summary = "eager", "breaks the contract"
    def init(self, cluster):
        return None
    def decide(self, state, event):
        return None, (Proceed((0, 1)), Proceed((0,)))

class Replicas(Eager):
    \"\"\"Has no placement on real workers.\"\"\"
    name, traits = "replicas", Traits(exchanges=frozenset({"replicas", "gradients"}))
"""


def test_a_policy_of_ones_own_without_a_placement_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    with job(switch_to_mine, 2, f"{path}:Replicas", policy="asp", allow_policy_files=True) as running:
        refused, other = running.join()
    told = "coordinator decisions about steps on gradients and on replicas have no placement there"
    assert told in refused.traceback.strip().split("\n")[-1]
    assert other.ok, other.traceback


def test_a_policy_of_ones_own_that_breaks_its_contract_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    with job(switch_to_mine, 2, f"{path}:Eager", policy="asp", allow_policy_files=True) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]


def join_late(rank: int, name: str) -> tuple[list[list[int]], Tensor]:
    """The second rank starts when the first is in the middle of its first epoch and waits for it there."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    epochs: list[list[int]] = []
    while rank == 1 and 0 not in steer.status(steer.at(name)).members:
        """Not yet."""
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(2):
            epochs.append([])
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=3)):
                while (rank, epoch, number) == (0, 0, 3) and 1 not in steer.status(steer.at(name)).members:
                    """Not yet."""
                step(model, optimizer, x, y)
                epochs[-1] += index.tolist()
    return epochs, flat(model)


@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp"])
def test_a_worker_that_comes_late_takes_its_part(policy: str) -> None:
    name = f"late-{uuid.uuid4().hex}"
    (ours, parameters), (theirs, others) = run_job(join_late, 2, name, name=name, workers=1, policy=policy)
    assert torch.equal(parameters, others)
    assert len(theirs[0]) >= 3, "the rest of the first epoch is shared"
    for mine, yours in zip(ours, theirs, strict=True):
        assert Counter(mine + yours) == Counter(range(SAMPLES))
