"""Parameter groups of which nothing is trained: torch leaves them alone, and so do the servers."""

import torch
from torch import nn

from polyrhythm.runtime.server.shard import ParameterShard
from polyrhythm.runtime.worker.optimizers import JointOptimizer
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.server import Push


def layers(frozen: int, count: int = 3) -> nn.Sequential:
    """Single weights, of which one is not trained."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(count)))
    model[frozen].requires_grad_(False)
    return model


def test_a_frozen_group_has_no_place_in_the_layout() -> None:
    for frozen in range(3):
        model = layers(frozen)
        groups = [{"params": layer.parameters(), "lr": 0.1 * (n + 1)} for n, layer in enumerate(model)]
        replica = ScriptReplica(model, torch.optim.SGD(groups, momentum=0.9))
        rates = [0.1 * (n + 1) for n in range(3) if n != frozen]
        assert [len(group) for group in replica.wire_layout.groups] == [1, 1]
        assert [group["lr"] for group in replica.spec().groups] == rates
        assert [group["lr"] for group in replica.settings()] == rates
        shard = ParameterShard(replica.wire_layout, 0, 1, replica.spec(), parse_compensation("none"))
        shard.load(torch.zeros(2), replica.export_state(), 0)
        shard.apply([Push(torch.ones(2))], settings=replica.settings())
        torch.testing.assert_close(shard.vector, -torch.tensor(rates))


def test_a_rate_of_a_group_is_its_own_after_the_script_has_loaded_a_state() -> None:
    model = layers(0)
    optimizer = torch.optim.SGD([{"params": layer.parameters()} for layer in model], lr=0.1)
    replica = ScriptReplica(model, optimizer)
    state = optimizer.state_dict()
    for number, group in enumerate(state["param_groups"]):
        group["lr"] = float(number)
    optimizer.load_state_dict(state)
    assert [group["lr"] for group in replica.settings()] == [1.0, 2.0]


def test_what_is_frozen_or_not_later_changes_no_number_of_groups() -> None:
    model = layers(0)
    groups = [{"params": layer.parameters(), "lr": 0.1 * (n + 1)} for n, layer in enumerate(model)]
    replica = ScriptReplica(model, torch.optim.SGD(groups))
    before = replica.settings()
    model[1].requires_grad_(False)
    assert replica.settings() == before
    model[0].requires_grad_(True)
    assert replica.settings() == before
    assert len(replica.spec().groups) == 2


def test_a_group_that_comes_later_is_none_of_the_replicas() -> None:
    """A script may add one between two trainings, and what servers have of the first one is fetched after that."""
    first, second, last = layers(0)
    first.requires_grad_(True)
    parts = [torch.optim.SGD(layer.parameters(), lr=rate) for layer, rate in ((first, 0.1), (second, 0.2))]
    replica = ScriptReplica(nn.ModuleList([first, second, last]), JointOptimizer(parts), moving={})
    parts[0].add_param_group({"params": list(last.parameters()), "lr": 0.3})
    assert [group["lr"] for group in replica.settings()] == [0.1, 0.2]
    replica.import_state(replica.export_state())


def test_an_idle_group_is_named_by_its_number_in_the_optimizers() -> None:
    model = layers(0)
    parts = [torch.optim.SGD(layer.parameters(), lr=0.1 * (n + 1)) for n, layer in enumerate(model)]
    replica = ScriptReplica(model, JointOptimizer(parts))
    replica.idle = frozenset({0, 2})
    first, second = replica.settings()
    assert first["lr"] == 0.2
    assert second == {}


def test_an_optimizer_of_another_kind_that_trains_nothing_leaves_the_servers_theirs() -> None:
    model = layers(0)
    parts = [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[1:].parameters(), lr=0.1)]
    replica = ScriptReplica(model, JointOptimizer(parts))
    assert replica.unservable == ""
    assert replica.spec().kind == "SGD"
    assert replica.elementwise
