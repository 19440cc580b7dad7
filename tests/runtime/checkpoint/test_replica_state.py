"""What was kept of a model and its optimizer, given to those of a script that may have been changed meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.replica_state import (
    ReplicaState,
    apply_optimizer,
    capture,
    check_optimizer,
    overruled,
)
from polyrhythm.runtime.worker.optimizers import JointOptimizer


def kept(optimizer: Optimizer, model: nn.Module) -> ReplicaState:
    model(torch.ones(1, 2)).sum().backward()
    for part in getattr(optimizer, "parts", (optimizer,)):
        part.step()
    return capture(model, optimizer, None, {})


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (SGD, Adam, "made with SGD, and there is Adam here"),
        (Adam, SGD, "made with Adam, and there is SGD here"),
        (lambda p: SGD(p, 0.1), lambda p: SGD([{"params": [each]} for each in p]), "made with 1 parameter groups, and"),
        (
            lambda p: JointOptimizer([SGD(list(p)[:1]), Adam(list(p)[1:])]),
            lambda p: JointOptimizer([Adam(list(p)[:1]), Adam(list(p)[1:])]),
            "made with SGD and Adam, and there is Adam and Adam here",
        ),
    ],
)
def test_the_state_of_another_kind_is_refused(
    before: Callable[[Any], Optimizer], after: Callable[[Any], Optimizer], line: str
) -> None:
    model = nn.Linear(2, 1)
    state = kept(before(list(model.parameters())), model)
    with pytest.raises(UsageError, match=f"^checkpoint x was {line}"):
        check_optimizer(state, after(list(model.parameters())), "checkpoint x")


def test_what_a_checkpoint_overrules_is_said() -> None:
    model = nn.Linear(2, 1)
    state = kept(SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    optimizer = SGD(model.parameters(), lr=0.5)
    assert overruled(state, optimizer, "checkpoint x") == [
        "lr 0.1 of checkpoint x holds; 0.5 is overruled",
        "momentum 0.9 of checkpoint x holds; 0 is overruled",
    ]
    apply_optimizer(state, model, optimizer)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.1, 0.9)
    assert overruled(state, optimizer, "checkpoint x") == []


def test_what_a_scheduler_has_moved_is_not_overruled_but_the_rate_that_it_starts_from_is() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    state = kept(optimizer, model)

    def again(rate: float) -> list[str]:
        anew = SGD(model.parameters(), lr=rate, momentum=0.9)
        StepLR(anew, 1, 0.5)
        return overruled(state, anew, "checkpoint x")

    assert again(0.1) == []
    assert again(0.2) == ["lr 0.1 of checkpoint x holds; 0.2 is overruled"]


def test_a_cycle_of_momentum_is_not_overruled() -> None:
    model = nn.Linear(2, 1)
    optimizer = Adam(model.parameters(), lr=0.1)
    scheduler = OneCycleLR(optimizer, 0.1, 10)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    state = kept(optimizer, model)
    anew = Adam(model.parameters(), lr=0.1)
    OneCycleLR(anew, 0.1, 10)
    assert overruled(state, anew, "checkpoint x") == []


class Scaled(nn.Module):
    """A linear map and its scale, which has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = nn.Linear(2, 1), nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.net(inputs) * self.scale
        return scaled


@pytest.mark.parametrize(("option", "place"), [({}, "cpu"), ({"fused": True}, "meta"), ({"capturable": True}, "meta")])
def test_a_scalars_momentum_comes_back_beside_it_and_its_step_count_where_torch_keeps_it(
    option: dict[str, bool], place: str
) -> None:
    """The device "meta" stands for one that is not the CPU."""
    source, model = Scaled(), Scaled().to("meta")
    state = kept(Adam(source.parameters()), source)
    optimizer = Adam(model.parameters())
    optimizer.param_groups[0].update(option)
    state.numbers["groups"] = [{}]
    apply_optimizer(state, model, optimizer)
    assert len(optimizer.state) == 3
    assert {entries["exp_avg"].device.type for entries in optimizer.state.values()} == {"meta"}
    assert {entries["step"].device.type for entries in optimizer.state.values()} == {place}
