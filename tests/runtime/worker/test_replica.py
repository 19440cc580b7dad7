"""A script's optimizer and that of a server are the same optimizer, whichever class it is, wherever its state is."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.msgpack import decode, encode
from torch import Tensor, nn

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.server.shard import ParameterShard
from polyrhythm.runtime.wire.segments import shape_of
from polyrhythm.runtime.wire.shard_protocol import LEAST_SHARE, NOT_IN_SHARES
from polyrhythm.runtime.worker.optimizers import JointOptimizer
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.server import Push
from tests.runtime.jobs import make_model, make_optimizer

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1},
    "SGD momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "SGD nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True},
    "SGD fused": {"lr": 0.1, "momentum": 0.9, "fused": True},
    "SGD maximize": {"lr": 0.1, "maximize": True},
    "Adam": {"lr": 0.01},
    "Adam foreach": {"lr": 0.01, "foreach": True},
    "Adam fused": {"lr": 0.01, "fused": True},
    "AdamW amsgrad": {"lr": 0.01, "amsgrad": True},
    "Adadelta": {"lr": 0.5},
    "Adagrad": {"lr": 0.1},
    "RMSprop centered": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "Rprop": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.1},
}


def made(name: str) -> ScriptReplica:
    model = make_model()
    return ScriptReplica(model, make_optimizer(model, name.split()[0], **OPTIMIZERS[name]))


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) for p in make_model().parameters()]


def make_steps(replica: ScriptReplica, steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(replica.parameters, gradients(step), strict=True):
            parameter.grad = gradient
        replica.optimizer.step()


def parameters(replica: ScriptReplica) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in replica.parameters])


def test_rates_of_numpy_are_told_as_numbers() -> None:
    replica = made("AdamW amsgrad")
    replica.optimizer.param_groups[0].update(lr=np.float64(0.5), betas=(np.float32(0.5), torch.tensor(0.25)))
    (settings,) = replica.settings()
    assert decode(encode(settings)) == settings | {"betas": [0.5, 0.25]}
    assert replica.spec().groups[0]["lr"] == 0.5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_server_goes_on_where_a_worker_stopped_and_back(name: str) -> None:
    """Three steps of the worker, three of the server, three of another worker: as nine of one."""
    alone, first, last = made(name), made(name), made(name)
    make_steps(alone, range(9))
    make_steps(first, range(3))
    shard = ParameterShard(first.wire_layout, 0, 1, first.spec(), parse_compensation("none"), ())
    shard.load(parameters(first), first.export_state(), 3)
    for step in range(3, 6):
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients(step)])
        shard.apply([Push(flat, None, 0, 1.0)], 1.0, first.settings())
    last.scatter_parameters(shard.vector)
    last.import_state(shard.state())
    make_steps(last, range(6, 9))
    torch.testing.assert_close(parameters(last), parameters(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_survives_export_and_import(name: str) -> None:
    replica = made(name)
    make_steps(replica, range(3))
    before = copy.deepcopy(replica.optimizer.state_dict())
    replica.import_state(replica.export_state())
    after = replica.optimizer.state_dict()
    assert before["state"].keys() == after["state"].keys()
    for key, state in before["state"].items():
        for entry, value in state.items():
            found = after["state"][key].get(entry)
            assert value is found or torch.equal(torch.as_tensor(value), torch.as_tensor(found)), (key, entry)
    make_steps(replica, range(3, 4))


def test_two_groups_and_a_frozen_parameter() -> None:
    model = make_model()
    first, _, last = model.children()
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.bias.requires_grad_(False)
    groups = [
        {"params": [last.weight, first.bias], "lr": 0.5},
        {"params": [first.weight, last.bias], "weight_decay": 0.1},
    ]
    replica = ScriptReplica(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    assert [[p.name for p in group] for group in replica.wire_layout.groups] == [["2.weight"], ["0.weight", "2.bias"]]
    assert [group["lr"] for group in replica.settings()] == [0.5, 0.1]
    assert [group["weight_decay"] for group in replica.spec().groups] == [0, 0.1]


def test_the_order_within_a_group_is_the_models() -> None:
    """A script may make its groups of sets, which every process has in an order of its own."""
    model = make_model()
    first, *others = model.parameters()
    replicas = [
        ScriptReplica(model, torch.optim.SGD([{"params": rest}, {"params": [first]}], lr=0.1))
        for rest in (others, others[::-1])
    ]
    assert replicas[0].wire_layout == replicas[1].wire_layout
    assert [id(p) for p in replicas[1].parameters] == [*map(id, others), id(first)]


def test_what_is_frozen_for_now_keeps_its_state() -> None:
    """As where a script trains two parts of its model in turn, and each time is a job of its own."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    model = nn.Sequential(first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    kept = optimizer.state[first.weight]["momentum_buffer"].clone()
    first.requires_grad_(False)
    replica = ScriptReplica(model, optimizer)
    replica.import_state(replica.export_state())
    replica.set_state(replica.copy_state())
    assert torch.equal(optimizer.state[first.weight]["momentum_buffer"], kept)


def test_a_parameter_without_a_gradient_does_not_cost_the_others_their_state() -> None:
    replica = made("Adam")
    step_all_but_last(replica, 0)
    first, last = replica.parameters[0], replica.parameters[-1]
    before = copy.deepcopy(replica.optimizer.state[first])
    replica.import_state(replica.export_state())
    assert all(torch.equal(replica.optimizer.state[first][key], value) for key, value in before.items())
    assert not replica.optimizer.state[last]["exp_avg"].any()


def test_by_parameters_one_without_a_gradient_keeps_no_state() -> None:
    replica = made("NAdam")
    step_all_but_last(replica, 0)
    state = replica.export_state(grouped=False)
    assert state.absent == {len(replica.parameters) - 1}
    replica.import_state(state, grouped=False)
    assert list(replica.optimizer.state) == replica.parameters[:-1]


@pytest.mark.parametrize("name", ["NAdam", "ASGD", "Rprop"])
def test_a_group_that_made_no_step_begins_anew_on_servers_and_back(name: str) -> None:
    alone, first, last = (in_two_groups(name) for _ in range(3))
    for replica in (alone, first):
        step_first_group(replica, 0)
    shard = ParameterShard(first.wire_layout, 0, 1, first.spec(), parse_compensation("none"), ())
    state = first.export_state()
    shard.check_state(shape_of(state))
    shard.load(parameters(first), state, 1)
    assert state.absent == shard.state().absent == {1}
    last.scatter_parameters(parameters(first))
    last.import_state(shard.state())
    assert all(p not in last.optimizer.state for p in last.optimizer.param_groups[1]["params"])
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients(1)])
    shard.apply([Push(flat, None, 0, 1.0)], 1.0, first.settings())
    for replica in (alone, last):
        make_steps(replica, range(1, 2))
    torch.testing.assert_close(shard.vector, parameters(alone))
    assert torch.equal(parameters(last), parameters(alone))


@pytest.mark.parametrize("name", ["Adagrad from 0.5", "Rprop", "SGD momentum"])
def test_in_a_group_of_which_one_made_no_step_that_one_begins_as_torch_lets_it(name: str) -> None:
    """A server has one vector for the group, so that it needs values for that one, too."""
    options = {"lr": 0.1, "initial_accumulator_value": 0.5} if "from" in name else OPTIMIZERS[name]
    alone, first, last = (
        ScriptReplica(m, make_optimizer(m, name.split()[0], **options)) for m in map(make_model, [0] * 3)
    )
    for replica in (alone, first):
        replica.drop_state()  # Adagrad has one from the start
        step_all_but_last(replica, 0)
    shard = ParameterShard(first.wire_layout, 0, 1, first.spec(), parse_compensation("none"), ())
    shard.load(parameters(first), first.export_state(), 1)
    last.scatter_parameters(parameters(first))
    last.import_state(shard.state())
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients(1)])
    shard.apply([Push(flat, None, 0, 1.0)], 1.0, first.settings())
    for replica in (alone, last):
        make_steps(replica, range(1, 2))
    torch.testing.assert_close(shard.vector, parameters(alone))
    torch.testing.assert_close(parameters(last), parameters(alone))


def step_all_but_last(replica: ScriptReplica, step: int) -> None:
    for parameter, gradient in zip(replica.parameters[:-1], gradients(step), strict=False):
        parameter.grad = gradient
    replica.optimizer.step()


def in_two_groups(name: str) -> ScriptReplica:
    model = make_model()
    first, _, last = model.children()
    groups = [{"params": first.parameters()}, {"params": last.parameters()}]
    return ScriptReplica(model, getattr(torch.optim, name)(groups, **OPTIMIZERS[name]))


def step_first_group(replica: ScriptReplica, step: int) -> None:
    for parameter, gradient in zip(replica.optimizer.param_groups[0]["params"], gradients(step), strict=False):
        parameter.grad = gradient
    replica.optimizer.step()


def test_gradients_are_hidden_from_one_step_only() -> None:
    replica = made("SGD momentum")
    make_steps(replica, range(1))
    before, state = parameters(replica).clone(), copy.deepcopy(replica.optimizer.state_dict())
    for parameter, gradient in zip(replica.parameters, gradients(1), strict=True):
        parameter.grad = gradient
    replica.hide_gradients()
    replica.optimizer.step()
    replica.show_gradients()
    assert torch.equal(parameters(replica), before)
    assert str(replica.optimizer.state_dict()) == str(state)
    assert all(p.grad is not None for p in replica.parameters)


def test_models_and_optimizers_that_do_not_fit() -> None:
    model, other = make_model(), make_model(1)
    with pytest.raises(
        PolyrhythmError, match=r"the optimizer does not have 2\.weight; give it all parameters, or freeze"
    ):
        ScriptReplica(model, torch.optim.SGD(next(model.children()).parameters(), lr=0.1))
    with pytest.raises(PolyrhythmError, match="parameters that are not in the model"):
        ScriptReplica(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    linear = nn.Linear(3, 2)
    with pytest.raises(PolyrhythmError, match="optimizer LBFGS computes gradients within its step"):
        ScriptReplica(linear, torch.optim.LBFGS(linear.parameters()))
    with pytest.raises(PolyrhythmError, match="no parameter with requires_grad=True"):
        ScriptReplica(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1))


def test_what_servers_cannot_hold_is_found_out() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    sgd = torch.optim.SGD(model[0].parameters(), lr=0.1)
    adam = torch.optim.Adam(model[1].parameters())
    assert "Adam and SGD are of several kinds" in ScriptReplica(model, JointOptimizer([sgd, adam])).unservable
    assert "row_var in another shape" in ScriptReplica(model, torch.optim.Adafactor(model.parameters())).unservable
    assert "SparseAdam cannot be used" in ScriptReplica(model, torch.optim.SparseAdam(model.parameters())).unservable
    assert "Own is none of torch.optim" in ScriptReplica(model, Own(model.parameters())).unservable
    assert "float64" in ScriptReplica(model.double(), torch.optim.SGD(model.parameters())).unservable
    with pytest.raises(PolyrhythmError, match="LBFGS computes gradients within its step"):
        ScriptReplica(model, torch.optim.LBFGS(model.parameters()))


class Own(torch.optim.SGD):
    """An optimizer that only its script knows."""


def test_servers_step_in_float32_and_workers_round() -> None:
    model = nn.Linear(2, 1).bfloat16()
    replica = ScriptReplica(model, torch.optim.Adam(model.parameters()))
    flat = torch.tensor([1.0, 1.001, 2.0])
    replica.scatter_parameters(flat)
    assert model.weight.tolist() == [[1.0, 1.0]]
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    out = torch.empty(replica.layout.size)
    replica.gather_gradients(out)
    assert out.tolist() == [1.0, 1.0, 1.0]
    replica.optimizer.step()
    state = replica.export_state()
    assert state.vectors["exp_avg"].values.dtype == torch.float32
    replica.import_state(state)
    assert replica.optimizer.state[model.weight]["exp_avg"].dtype == torch.bfloat16


def test_an_idle_group_of_a_server_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    parts = [torch.optim.Adam(layer.parameters(), lr=0.1) for layer in model]
    replica = ScriptReplica(model, JointOptimizer(parts))
    shard = ParameterShard(replica.wire_layout, 0, 1, replica.spec(), parse_compensation("none"))
    shard.load(torch.zeros(2), replica.export_state(), 0)
    replica.idle = frozenset({1})
    shard.apply([Push(torch.tensor([1.0, 0.0]))], settings=replica.settings())
    assert shard.vector.tolist() == pytest.approx([-0.1, 0.0])
    replica.idle = frozenset()
    shard.apply([Push(torch.tensor([1.0, 1.0]))], settings=replica.settings())
    replica.import_state(shard.state())
    assert shard.vector.tolist() == pytest.approx([-0.2, -0.1])


def test_a_model_that_mixes_gradients_says_so() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    replica = ScriptReplica(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "SyncBatchNorm 1 mixes the gradients of all" in str(replica.terms[NOT_IN_SHARES])
    plain = nn.BatchNorm1d(2)
    assert ScriptReplica(plain, torch.optim.SGD(plain.parameters(), lr=0.1)).terms == {LEAST_SHARE: 2}
