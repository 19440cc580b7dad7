"""A parameter without dimensions, such as CLIP's logit_scale: its momentum is no step count, though both are 0-dim."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyrhythm.runtime.server.shard import ParameterShard
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.optimizer import OptimizerState
from polyrhythm.training.server import Push
from tests.runtime.worker.test_replica import OPTIMIZERS


class Scaled(nn.Module):
    """A linear map, its scale and its shift."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.5))


GROUPS: dict[str, Callable[[Scaled], list[list[nn.Parameter]]]] = {
    "one group": lambda model: [list(model.parameters())],
    "scalars apart": lambda model: [list(model.net.parameters()), [model.scale, model.shift]],
    "each apart": lambda model: [[model.scale], list(model.net.parameters()), [model.shift]],
}


class Scalars(nn.Module):
    """Nothing else to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.5))


def made(name: str, grouping: str) -> ScriptReplica:
    model = Scaled()
    groups = [{"params": group} for group in GROUPS[grouping](model)]
    return ScriptReplica(model, getattr(torch.optim, name.split()[0])(groups, **OPTIMIZERS[name]))


def gradient(replica: ScriptReplica, step: int) -> Tensor:
    return torch.randn(replica.layout.size, generator=torch.Generator().manual_seed(step))


def make_steps(replica: ScriptReplica, steps: range) -> None:
    for step in steps:
        for parameter, part in zip(replica.parameters, replica.layout.views(gradient(replica, step)), strict=True):
            parameter.grad = part.clone()
        replica.optimizer.step()


def parameters(replica: ScriptReplica) -> Tensor:
    return replica.layout.gather(replica.parameters, torch.empty(replica.layout.size))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same numbers of the same shapes and types; an entry of None is like none."""
    assert found["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        for key, value in state.items():
            other = found["state"][number].get(key)
            if isinstance(value, Tensor):
                assert (other.shape, other.dtype) == (value.shape, value.dtype), (number, key)
            assert value is other or torch.equal(torch.as_tensor(other), torch.as_tensor(value)), (number, key)


@pytest.mark.parametrize("grouped", [True, False], ids=["by groups", "by parameters"])
@pytest.mark.parametrize("grouping", GROUPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_with_scalars_survives_export_and_import(name: str, grouping: str, grouped: bool) -> None:
    replica = made(name, grouping)
    make_steps(replica, range(3))
    before = copy.deepcopy(replica.optimizer.state_dict())
    fresh = made(name, grouping)
    fresh.import_state(replica.export_state(grouped), grouped)
    assert_same(fresh.optimizer.state_dict(), before)


@pytest.mark.parametrize("grouping", GROUPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_server_goes_on_with_scalars_and_back(name: str, grouping: str) -> None:
    alone, first, last = (made(name, grouping) for _ in range(3))
    make_steps(alone, range(9))
    make_steps(first, range(3))
    shard = ParameterShard(first.wire_layout, 0, 1, first.spec(), parse_compensation("none"))
    shard.load(parameters(first), first.export_state(), 3)
    for step in range(3, 6):
        shard.apply([Push(gradient(first, step), None, 0, 1.0)], 1.0, first.settings())
    last.scatter_parameters(shard.vector)
    last.import_state(shard.state())
    make_steps(last, range(6, 9))
    torch.testing.assert_close(parameters(last), parameters(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_of_scalars_only(name: str) -> None:
    model = Scalars()
    replica = ScriptReplica(model, getattr(torch.optim, name.split()[0])(model.parameters(), **OPTIMIZERS[name]))
    make_steps(replica, range(3))
    before = copy.deepcopy(replica.optimizer.state_dict())
    for grouped in (True, False):
        replica.import_state(replica.export_state(grouped), grouped)
        assert_same(replica.optimizer.state_dict(), before)


def test_a_scalar_without_a_gradient_has_momentum_zero() -> None:
    replica = made("SGD momentum", "scalars apart")
    make_steps(replica, range(1))
    first, last = replica.parameters[-2:]
    momentum = replica.optimizer.state[first]["momentum_buffer"].clone()
    del replica.optimizer.state[last]
    state = replica.export_state()
    assert state.vectors["momentum_buffer"].shapes[1] == (2,)
    replica.import_state(state)
    assert torch.equal(replica.optimizer.state[first]["momentum_buffer"], momentum)
    assert replica.optimizer.state[last]["momentum_buffer"].item() == 0.0


@pytest.mark.parametrize(("option", "place"), [({}, "cpu"), ({"fused": True}, "meta"), ({"capturable": True}, "meta")])
@pytest.mark.parametrize("grouped", [True, False], ids=["by groups", "by parameters"])
def test_a_scalars_momentum_is_beside_it_and_its_step_count_where_torch_keeps_it(
    option: dict[str, bool], place: str, grouped: bool
) -> None:
    """The device "meta" stands for one that is not the CPU."""
    source = made("Adam", "scalars apart")
    make_steps(source, range(1))
    state: OptimizerState = source.export_state(grouped)
    model = Scaled().to("meta")
    optimizer = torch.optim.Adam([{"params": group} for group in GROUPS["scalars apart"](model)])
    for group in optimizer.param_groups:
        group.update(option)
    replica = ScriptReplica(model, optimizer)
    replica.import_state(state, grouped)
    assert {entries["exp_avg"].device.type for entries in optimizer.state.values()} == {"meta"}
    assert {entries["step"].device.type for entries in optimizer.state.values()} == {place}
