"""Settings of a policy on real workers: rate, momentum and batch size, in synchronous mode and on the servers."""

from typing import Any

import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.core import Settings
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.worker.optimizers import StepSettings
from tests.runtime.jobs import Numbered, flat, make_model, make_optimizer, run_job, step

BATCH = 4
SAMPLES = 48


def train(rank: int, kind: str, options: dict[str, Any], epochs: int) -> tuple[Tensor, list[int], float]:
    """Parameters, sizes of mini-batches, and the rate that the script finds in the end."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, kind, **options)
    sizes = []
    with polyrhythm.session(model, optimizer, epochs=epochs) as session:
        for _ in range(epochs):
            for x, y, _ in session.loader(Numbered(SAMPLES), batch_size=BATCH, shuffle=False):
                step(model, optimizer, x, y)
                sizes.append(len(x))
    return flat(model), sizes, optimizer.param_groups[0]["lr"]


def alone(kind: str, options: dict[str, Any], of_step: list[dict[str, float]]) -> Tensor:
    """The same steps in one process, each with its own options."""
    model = make_model(seed=0)
    optimizer = make_optimizer(model, kind, **options)
    data = Numbered(SAMPLES)
    for number, changes in enumerate(of_step):
        optimizer.param_groups[0].update(changes)
        start = number * BATCH % SAMPLES
        step(model, optimizer, data.x[start : start + BATCH], data.y[start : start + BATCH])
    return flat(model)


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:3"])
def test_rate_and_momentum(policy: str) -> None:
    options = {"lr": 0.1, "momentum": 0.9}
    ((parameters, _, rate),) = run_job(train, 1, "SGD", options, 1, policy=f"tuned:({policy}),lr=0.5,momentum=0.25")
    wanted = alone("SGD", options, [{"lr": 0.05, "momentum": 0.25}] * 12)
    assert torch.allclose(parameters, wanted, atol=1e-6)
    assert rate == 0.1, "between steps the script has its own rate"


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_ramp_over_epochs_and_its_end(policy: str) -> None:
    """One worker: i/n is 0 in the first epoch and 1 in the second, which is beyond the end of the ramp."""
    options = {"lr": 0.1, "momentum": 0.9}
    ((parameters, _, _),) = run_job(
        train, 1, "SGD", options, 2, policy=f"switch:{policy}@0.25,(tuned:({policy}),momentum=i/n,full=0.5)", epochs=2
    )
    wanted = alone("SGD", options, [{}] * 6 + [{"momentum": 0.0}] * 12 + [{"momentum": 0.9}] * 6)
    assert torch.allclose(parameters, wanted, atol=1e-6)


def test_batch_size_on_the_servers() -> None:
    ((_, sizes, _),) = run_job(train, 1, "SGD", {"lr": 0.1}, 1, policy="switch:bsp@0.5,asp,batch=2", epochs=1)
    assert sizes == [4] * 6 + [2] * 12


def test_first_beta() -> None:
    model = make_model()
    adam = make_optimizer(model, "Adam", lr=0.1)
    steering = StepSettings(adam)
    steering.settings = Settings(momentum=0.5)
    steering.begin()
    assert adam.param_groups[0]["betas"] == (0.5, 0.999)
    steering.end()
    assert adam.param_groups[0]["betas"] == (0.9, 0.999)


def test_an_optimizer_without_momentum_is_refused() -> None:
    steering = StepSettings(make_optimizer(make_model(), "Adagrad", lr=0.1))
    steering.settings = Settings(momentum=0.5)
    with pytest.raises(PolyrhythmError, match=r"momentum of 0\.5, but the optimizer Adagrad has none"):
        steering.begin()
