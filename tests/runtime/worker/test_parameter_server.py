"""Where servers make the steps, a script that writes into parameters by itself is told so."""

import pytest
import torch
from torch import nn

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker.parameter_server import LOOK_EVERY, WRITTEN
from tests.runtime.jobs import Numbered, make_model, make_optimizer, run_job


def train(rank: int, clipped: int | None, samples: int = 48) -> str:
    """What the script is told that clips its parameters in this step, after or before the optimizer's."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    try:
        with polyrhythm.session(model, optimizer) as session:
            for number, (x, y, _) in enumerate(session.loader(Numbered(samples), 4)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if number == clipped:
                    with torch.no_grad():
                        next(model.parameters()).clamp_(-0.01, 0.01)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("clipped", [0, 1])
def test_parameters_that_the_script_changes_are_refused(clipped: int) -> None:
    assert run_job(train, 1, clipped, policy="asp") == [WRITTEN]


def test_it_is_looked_now_and_then_later_too() -> None:
    assert run_job(train, 1, LOOK_EVERY - 2, 4 * (LOOK_EVERY + 2), policy="asp") == [WRITTEN]


@pytest.mark.parametrize("policy", ["asp", "k-sync:1"])
def test_a_script_that_does_not_goes_on(policy: str) -> None:
    assert run_job(train, 2, None, policy=policy) == ["", ""]


@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_on_workers_it_may(policy: str) -> None:
    assert run_job(train, 2, 0, policy=policy) == ["", ""]
