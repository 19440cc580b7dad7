"""A script's own checkpoint at any step: who resumes goes on exactly there, and every sample is made once."""

from typing import Any

import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts
from tests.runtime.coordinates import trouble
from tests.runtime.jobs import job, run_job

EPOCHS, SAMPLES, BATCH, SLOTS = 2, 120, 4, 32

Checkpoint = dict[str, Any]


def train(rank: int, slots: int, at: int | None, kept: Checkpoint | None, seed: int = 0) -> tuple[Checkpoint, Tensor]:
    """Train, perhaps from a checkpoint, and perhaps until so many steps: a checkpoint, and the parameters."""
    model = SampleAttempts(EPOCHS, SAMPLES, slots)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5 if slots == 1 and seed else 0.0)
    if kept is not None:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    made: list[Checkpoint] = []
    with polyrhythm.session(model, optimizer) as session:
        if kept is not None:
            session.load_state_dict(kept["session"])

        def after_step() -> None:
            if session.metrics["steps"] == at:
                told = {"session": session.state_dict(), "model": clone(model.state_dict())}
                made.append({**told, "optimizer": clone(optimizer.state_dict())})

        train_attempts(session, model, optimizer, BATCH, 0.0, kept["session"]["epoch"] + 1 if kept else 0, after_step)
    return (made or [{}])[0], model.weight.detach().clone()


def clone(state: Any) -> Any:
    """As a file would have it."""
    if isinstance(state, Tensor):
        return state.clone()
    return {key: clone(value) for key, value in state.items()} if isinstance(state, dict) else state


def first_checkpoint(workers: int, at: int, slots: int, seed: int = 0, **settings: Any) -> tuple[Checkpoint, Tensor]:
    """The earliest of any rank, and the parameters of a job that was never disturbed.

    A rank that is slow may have few steps under its name, or none where slow steps are cancelled; all cannot.
    """
    outcomes = run_job(train, workers, slots, at, None, seed, epochs=EPOCHS, **settings)
    kept = min((made for made, _ in outcomes if made), key=lambda made: int(made["session"]["epoch"]))
    return kept, outcomes[0][1]


@pytest.mark.parametrize("at", [1, 7, 14, 20])
def test_under_bsp_every_bit_is_that_of_a_job_that_was_not_disturbed(at: int) -> None:
    kept, whole = first_checkpoint(2, at, 1, seed=1, policy="bsp")
    assert "position" in kept["session"]
    for _, weight in run_job(train, 2, 1, None, kept, 1, epochs=EPOCHS, policy="bsp"):
        assert torch.equal(weight, whole)


@pytest.mark.parametrize("policy", ["asp", "ssp:3", "k-sync:2", "balanced"])
@pytest.mark.parametrize("workers", [3, 2])
def test_every_sample_is_made_once(policy: str, workers: int) -> None:
    kept, _ = first_checkpoint(3, 5, SLOTS, policy=policy)
    left = sum(stop - start for _, start, stop in kept["session"]["position"]["left"])
    assert int((kept["model"]["weight"] != 0).sum()) == SAMPLES - left
    for _, weight in run_job(train, workers, SLOTS, None, kept, epochs=EPOCHS, policy=policy):
        assert torch.equal((weight != 0).sum(-1), torch.ones(EPOCHS, SAMPLES, dtype=torch.int64))


@pytest.mark.parametrize(("policy", "at"), [("bsp", 4), ("local:3", 6), ("selsync:0", 4)])
def test_on_another_number_of_workers_every_sample_is_made_once(policy: str, at: int) -> None:
    kept, _ = first_checkpoint(3, at, 1, policy=policy)
    weights = [weight for _, weight in run_job(train, 2, 1, None, kept, epochs=EPOCHS, policy=policy)]
    assert trouble([weight[..., 0] for weight in weights], [3, 2]) == ""
    assert int(weights[0][0].isclose(torch.tensor(1 / 3)).sum()) == 3 * BATCH * at


def test_replicas_that_differ_are_not_kept_as_if_they_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Who resumes makes the epoch again, which is said."""
    model = SampleAttempts(1, SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    told: list[Checkpoint] = []
    with polyrhythm.session(model, optimizer, policy="local:3") as session:
        train_attempts(session, model, optimizer, BATCH, 0.0, after_step=lambda: told.append(session.state_dict()))
    assert told[0] == {"epoch": -1, "policy": "local:3"}
    assert [tuple(left) for left in told[2]["position"]["left"]] == [(0, 3 * BATCH, SAMPLES)]
    assert "rank 0: under local:3 the state at this step cannot be kept exactly; who resumes makes epoch 0 again" in (
        capsys.readouterr().err
    )


def test_momentum_of_each_is_not_that_of_all() -> None:
    """After an average the parameters are equal, and each worker's optimizer goes on with its own state."""
    model = SampleAttempts(1, SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    told: list[Checkpoint] = []
    with polyrhythm.session(model, optimizer, policy="local:3") as session:
        train_attempts(session, model, optimizer, BATCH, 0.0, after_step=lambda: told.append(session.state_dict()))
    assert all("position" not in state for state in told)


def test_another_order_of_the_data_is_refused() -> None:
    kept, _ = first_checkpoint(2, 4, 1, policy="bsp")
    kept["session"]["position"]["terms"]["seed"] = 7
    with job(train, 2, 1, None, kept, epochs=EPOCHS, policy="bsp") as running:
        outcomes = running.ranks.join(60.0)
    for outcome in outcomes:
        assert "the loader has seed=0, that of the checkpoint seed=7" in outcome.traceback.strip().split("\n")[-1]


def test_what_a_policy_has_learned_goes_on() -> None:
    kept, _ = first_checkpoint(2, 9, 1, policy="auto")
    assert kept["session"]["policy"] == "auto"
    assert "Mind" in kept["session"]["position"]["known"]
