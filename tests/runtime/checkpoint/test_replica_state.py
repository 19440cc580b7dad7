"""What was kept of a model and its optimizer, given to those of a script that may have been changed meanwhile."""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.replica_state import (
    ReplicaState,
    apply_model,
    apply_optimizer,
    capture,
    check_optimizer,
    overruled,
    read_state,
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


class Counting(nn.Linear):
    """A layer that has more than tensors."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def written(state: ReplicaState, folder: Path) -> ReplicaState:
    """As another process reads it."""
    state.write(folder)
    return read_state(folder)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("extra", [{"seen": 3, "shape": (2, [1]), 5: None}, "calibrated", None, torch.ones(3)])
def test_a_models_extra_state_comes_back(extra: Any, nested: bool, tmp_path: Path) -> None:
    layers = Counting(extra), Counting(torch.zeros(1))
    source, model = [nn.Sequential(layer) if nested else layer for layer in layers]
    state = written(kept(SGD(source.parameters()), source), tmp_path)
    apply_model(state, model, "checkpoint x")
    assert torch.equal(layers[1].extra, extra) if isinstance(extra, torch.Tensor) else layers[1].extra == extra
    assert state.lost == ()


def test_an_extra_state_that_is_no_plain_value_is_said_and_costs_nothing_else() -> None:
    source, model = Counting(open), Counting("own")
    state = kept(SGD(source.parameters()), source)
    assert state.lost == (
        "_extra_state is or has a builtin_function_or_method, which a checkpoint cannot keep; it begins anew after one",
    )
    apply_model(state, model, "checkpoint x")
    assert (model.extra, model.weight.tolist()) == ("own", source.weight.tolist())


def test_a_sparse_tensor_in_an_extra_state_does_not_end_the_job() -> None:
    source = Counting({"seen": torch.eye(2).to_sparse()})
    assert kept(SGD(source.parameters()), source).lost == (
        "_extra_state is or has a sparse or quantized tensor, which a checkpoint cannot keep; it begins anew after one",
    )


def test_an_extra_state_of_another_model_is_refused() -> None:
    source = Counting("calibrated")
    with pytest.raises(UsageError, match="made with another model: _extra_state is kept there and missing here"):
        apply_model(kept(SGD(source.parameters()), source), nn.Linear(2, 1), "checkpoint x")


def test_the_extra_state_of_a_module_with_two_names_comes_back(tmp_path: Path) -> None:
    source, own = Counting("calibrated"), Counting("own")
    state = written(capture(nn.ModuleList([source, source]), SGD(source.parameters()), None, {}), tmp_path)
    apply_model(state, nn.ModuleList([own, own]), "checkpoint x")
    assert own.extra == "calibrated"


class Stamped(nn.Linear):
    """Adds to its state_dict what is no tensor, and no extra state."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "stamp"] = 5


def test_what_a_state_dict_alone_has_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    source, model = Stamped(2, 1), Stamped(2, 1)
    captured = kept(SGD(source.parameters()), source)
    apply_model(written(captured, tmp_path), model, "checkpoint x")
    assert torch.equal(model.weight, source.weight)
    assert captured.lost == (
        "stamp is neither a tensor nor taken back by a set_extra_state of its module, which a checkpoint cannot keep; "
        "it begins anew after one",
    )


def test_tensors_in_lists_of_an_optimizer_come_back_beside_their_parameter(tmp_path: Path) -> None:
    source, model = nn.Linear(2, 1), nn.Linear(2, 1, device="meta")
    old, new = SGD(source.parameters()), SGD(model.parameters())
    old.state[source.weight]["past"] = [torch.ones(2), {"pair": (torch.ones(1), 3)}]
    apply_optimizer(written(kept(old, source), tmp_path), model, new)
    first, more = new.state[model.weight]["past"]
    assert (first.is_meta, more["pair"][0].is_meta, more["pair"][1]) == (True, True, 3)


def test_settings_of_a_group_come_back_as_they_were(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    rows = {"betas": [0.5, 0.25], "names": ["a", "b"], "plan": {"warm": (1, [2, None])}, "scale": np.float32(0.5)}
    source, anew = (Adam([{"params": list(model.parameters()), **more}]) for more in (rows, dict.fromkeys(rows)))
    anew.param_groups[0]["betas"] = [0.0, 0.0]
    state = written(kept(source, model), tmp_path)
    apply_optimizer(state, model, anew)
    assert {key: anew.param_groups[0][key] for key in rows} == rows
    assert overruled(state, source, "checkpoint x") == []
    assert state.lost == ()


def test_a_setting_that_is_a_tensor_keeps_its_place_and_type(tmp_path: Path) -> None:
    model, rows = nn.Linear(2, 1), (torch.tensor(0.5), torch.tensor(0.25))
    source = Adam(model.parameters(), betas=rows, foreach=False)
    source.param_groups[0]["scales"] = torch.ones(3)
    state = written(kept(source, model), tmp_path)
    anew = Adam(model.parameters(), betas=(torch.tensor(0.0, dtype=torch.float64), torch.tensor(0.0)), foreach=False)
    anew.param_groups[0]["scales"] = torch.zeros(3, dtype=torch.float64)
    assert [line.split(" of checkpoint x ")[0] for line in overruled(state, anew, "checkpoint x")] == [
        "betas (tensor(0.5000, dtype=torch.float64), tensor(0.2500))",
        "scales [1.0, 1.0, 1.0]",
    ]
    apply_optimizer(state, model, anew)
    first, second = anew.param_groups[0]["betas"]
    assert (float(first), first.dtype, float(second)) == (0.5, torch.float64, 0.25)
    assert torch.equal(anew.param_groups[0]["scales"], torch.ones(3, dtype=torch.float64))


def test_what_of_an_optimizer_is_no_plain_value_is_said() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["filter"] = kept
    optimizer.state[model.weight]["rows"] = {"seen": [1, 2]}
    optimizer.state[model.bias]["rows"] = {1, 2}
    state = kept(optimizer, model)
    assert state.lost == (
        "bias/rows of the optimizer is or has a set, which a checkpoint cannot keep; it begins anew after one",
        "filter of the optimizer is or has a function, which a checkpoint cannot keep; it begins anew after one",
    )
    optimizer.state.clear()
    apply_optimizer(state, model, optimizer)
    assert optimizer.state[model.weight]["rows"] == {"seen": [1, 2]}


class Pair(NamedTuple):
    first: Any
    second: Any


def test_tensors_within_other_values_are_no_text(tmp_path: Path) -> None:
    """As JSON two million numbers take a quarter of a second, and ten times the room."""
    source, model, past = Counting({"seen": [torch.rand(3)]}), Counting(None), torch.rand(3)
    old, new = SGD(source.parameters()), SGD(model.parameters())
    old.state[source.weight]["past"] = [past]
    state = kept(old, source)
    past.zero_()
    assert len(json.dumps(state.numbers)) < 1000
    assert "tensor" not in json.dumps(state.numbers)
    back = written(state, tmp_path)
    for _ in range(2):
        apply_model(back, model, "checkpoint x")
        assert torch.equal(model.extra["seen"][0], source.extra["seen"][0])
        model.extra["seen"][0].zero_()
    apply_optimizer(back, model, new)
    assert torch.equal(new.state[model.weight]["past"][0], state.optimizer["within.1"])
    assert new.state[model.weight]["past"][0].all()


def test_an_ordered_dict_comes_back_as_one_and_what_does_not_is_said(tmp_path: Path) -> None:
    extra = {
        "order": OrderedDict(a=1),
        "count": Counter("aab"),
        "pair": Pair(1, torch.ones(1)),
        "rest": defaultdict(list),
    }
    source, model = Counting(extra), Counting(None)
    optimizer = SGD(source.parameters())
    optimizer.state[source.weight]["past"] = Pair(OrderedDict(b=torch.ones(1)), 2)
    state = kept(optimizer, source)
    assert state.lost == (
        "_extra_state is or has a Pair, which comes back from a checkpoint as a tuple",
        "_extra_state is or has a defaultdict, which comes back from a checkpoint as a dict",
        "weight/past of the optimizer is or has a Pair, which comes back from a checkpoint as a tuple",
    )
    apply_model(written(state, tmp_path), model, "checkpoint x")
    assert model.extra == extra | {"pair": (1, torch.ones(1))}
    assert [type(each) for each in model.extra.values()] == [OrderedDict, Counter, tuple, dict]
    apply_optimizer(state, source, optimizer)
    assert isinstance(optimizer.state[source.weight]["past"][0], OrderedDict)
