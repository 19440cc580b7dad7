"""Parity laws on real workers: what a job trains is what one process trains, to float tolerance."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polyrhythm
from tests.runtime.jobs import Numbered, flat, make_model, make_optimizer, run_job, step

SAMPLES = 48
EPOCHS = 3
MOMENTUM: dict[str, Any] = {"kind": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
PLAIN = {"kind": "SGD", "lr": 0.1}
ADAM = {"kind": "Adam", "lr": 0.01}


def train(rank: int, batch_size: int, optimizer: dict[str, Any], switches: dict[tuple[int, int], str]) -> Tensor:
    """Train under what `switches` names by epoch and step of this worker; the last parameters."""
    model = make_model(seed=rank)
    made = make_optimizer(model, **optimizer)
    with polyrhythm.session(model, made, epochs=EPOCHS) as session:
        for epoch in range(EPOCHS):
            for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch_size, shuffle=False)):
                step(model, made, x, y)
                if rank == 0 and (epoch, number) in switches:
                    session.switch(switches[epoch, number])
    return flat(model)


def train_past_ddp(rank: int, how: str) -> tuple[Tensor, Tensor]:
    """Train with passes of which DistributedDataParallel hears nothing; the last parameters, and those of a copy."""
    model = make_model(seed=rank).train(how != "evaluation mode")
    made = make_optimizer(model, **MOMENTUM)
    with polyrhythm.session(model, made, epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for x, y, _ in session.loader(Numbered(SAMPLES), 4, shuffle=False):
                if how == "inner":
                    step(nn.Sequential(*model.children()), made, x, y)
                else:
                    step(model, made, x, y)
        copied = pickle.loads(pickle.dumps(model)) if how == "inner" else copy.deepcopy(model)  # noqa: S301
    step(model, make_optimizer(model, lr=1.0), x, y)  # of which the copy knows nothing
    assert not torch.equal(flat(copied), flat(model))
    return flat(copied), copied(x) - nn.Sequential(*copied.children())(x)


def train_alone(batch_size: int, optimizer: dict[str, Any]) -> Tensor:
    """The same in a plain loop."""
    model, data = make_model(seed=0), Numbered(SAMPLES)
    made = make_optimizer(model, **optimizer)
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, batch_size):
            step(model, made, data.x[start : start + batch_size], data.y[start : start + batch_size])
    return flat(model)


def close(found: list[Tensor], expected: Tensor) -> None:
    for parameters in found:
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_one_worker_is_a_plain_loop_whatever_is_switched_and_when(optimizer: dict[str, Any]) -> None:
    switches = {
        (0, 1): "asp",
        (0, 6): "bsp",
        (1, 0): "local:3",
        (1, 5): "ssp:2",
        (1, 11): "k-sync:1",
        (2, 2): "local:2",
        (2, 4): "k-batch-async:1",
        (2, 7): "bsp",
    }
    close(run_job(train, 1, 4, optimizer, switches), train_alone(4, optimizer))


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_two_in_step_are_one_process_with_twice_the_batch(optimizer: dict[str, Any]) -> None:
    """BSP, K-sync(n) and BSP again; each round takes the same samples whoever takes which."""
    switches = {(0, 5): "k-sync:2", (1, 5): "bsp"}
    close(run_job(train, 2, 4, optimizer, switches), train_alone(8, optimizer))


@pytest.mark.parametrize("how", ["evaluation mode", "inner"])
@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_gradients_of_passes_past_ddp_are_exchanged_and_a_copy_is_a_plain_model(policy: str, how: str) -> None:
    """Under bsp replicas drifted apart for 256 steps, and a model could not be copied while it was in force."""
    (first, apart), (second, _) = run_job(train_past_ddp, 2, how, policy=policy)
    assert torch.equal(first, second)
    assert not apart.any()
    if policy == "bsp":
        close([first], train_alone(8, MOMENTUM))


@pytest.mark.parametrize("policy", ["local:1", "esync:normalised,most=1", "post-local:1,at=0.4", "post-local:8,at=1"])
def test_replicas_that_meet_in_every_step_are_bsp_under_plain_sgd(policy: str) -> None:
    """ESync's fast workers may make no further step; post-local SGD has both of its phases."""
    close(run_job(train, 2, 4, PLAIN, {}, policy=policy), train_alone(8, PLAIN))
