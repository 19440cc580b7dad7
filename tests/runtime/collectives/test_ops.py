"""Averages, agreement and handover, on real gloo processes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import GroupError, PolyrhythmError
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives import ops as collectives
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import Census
from polyrhythm.runtime.collectives.state_transfer import adopt, hand_over, outline_of
from polyrhythm.testing.processes import run_workers
from tests.runtime.ddp_models import Branches, equal, network

SIZE = 3


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    first, second, *others = model.parameters()
    return [{"params": [first, second], "lr": 0.01}, {"params": others}]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "plain SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "AdamW": lambda m: torch.optim.AdamW(two_groups(m), amsgrad=True),
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
}


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def worker(rank: int, port: int) -> dict[str, Any]:
    """Everything that these tests look at, in one set of processes."""
    generation = Generation(TCPStore("127.0.0.1", port, is_master=False), "all", range(SIZE), rank)
    return {
        "vectors": vectors(generation),
        "module": module_mean(generation),
        "gradients": gradients(generation),
        "census": collectives.take_census(generation, Census(rank, 2**32 - 1 - rank, 2**64 - 1)),
        "records": records(generation),
        "handover": {name: handed_over(generation, build) for name, build in OPTIMIZERS.items()},
        "other optimizer": other_optimizer(generation),
        "afterwards": afterwards(generation),
    }


def vectors(generation: Generation) -> dict[str, list[float]]:
    def own() -> Tensor:
        return torch.tensor([1.0, 10.0]) * (generation.rank + 1)

    results = {name: own() for name in ("sum", "max", "mean", "weighted", "broadcast")}
    collectives.all_reduce(generation, results["sum"])
    collectives.all_reduce(generation, results["max"], ReduceOp.MAX)
    collectives.mean(generation, results["mean"])
    collectives.mean(generation, results["weighted"], share=(0.5, 0.5, 0.0)[generation.rank])
    collectives.broadcast(generation, results["broadcast"], source=1)
    return {name: vector.tolist() for name, vector in results.items()}


def module_mean(generation: Generation) -> list[Tensor]:
    model = network()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(generation.rank) if tensor.is_floating_point() else tensor.fill_(10 * generation.rank)
    averager.Averager(model).mean(generation, share=(0.5, 0.25, 0.25)[generation.rank])
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


def gradients(generation: Generation) -> list[Tensor | None]:
    """Ranks 0 and 1 use the left layer, nobody the right one; rank 2 has no gradient at all."""
    model = Branches()
    if generation.rank < 2:
        model(torch.full((2, 20), -1.0 - generation.rank)).sum().backward()
    collectives.mean_gradients(generation, list(model.parameters()))
    return [p.grad for p in model.parameters()]


def handed_over(generation: Generation, build: Callable[[nn.Module], torch.optim.Optimizer]) -> list[Tensor]:
    """Rank 1 has trained; the others are cold; then all make the same step."""
    model = network()
    optimizer = build(model)
    if generation.rank == 1:
        train(model, optimizer, steps=3)
        optimizer.param_groups[0]["lr"] = 0.05
    hand_over(generation, model, optimizer, source=1)
    train(model, optimizer, steps=1)
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 20), float(step)) + torch.arange(20.0)).square().mean().backward()
        optimizer.step()


def other_optimizer(generation: Generation) -> str:
    """A joiner with another optimizer gets a clear line, and nobody waits for it."""
    inner = Generation(generation._store, "inner", generation.members, generation.worker)
    model = network()
    kind = "SGD" if generation.rank == 2 else "AdamW"
    with pytest.raises(PolyrhythmError) as error:
        take_over_and_go_on(inner, model, OPTIMIZERS[kind](model))
    return str(error.value)


def take_over_and_go_on(generation: Generation, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    hand_over(generation, model, optimizer, source=0)
    collectives.all_reduce(generation, torch.zeros(1))


def records(generation: Generation) -> list[bytes]:
    """Records at once; the second exchange is not mistaken for the first."""
    generation.open_peer_sockets()
    generation.gather(b"first")
    return generation.gather(bytes([generation.rank]))


def afterwards(generation: Generation) -> str:
    """Every collective of an epoch that was given up says so."""
    generation.abort("enough")
    with pytest.raises(GroupError, match=r"epoch 'all' among \(0, 1, 2\) failed: "):
        generation.gather(b"late")
    with pytest.raises(GroupError) as error:
        collectives.mean(generation, torch.zeros(1))
    return str(error.value)


def test_collectives_of_the_session(store: TCPStore) -> None:
    results = run_workers(worker, SIZE, store.port)
    for result in results:
        check_vectors(result["vectors"])
        check_module(result["module"])
        check_gradients(result["gradients"])
        assert result["census"] == [Census(rank, 2**32 - 1 - rank, 2**64 - 1) for rank in range(SIZE)]
        assert result["records"] == [b"\0", b"\1", b"\2"]
        assert "allreduce in epoch 'all' among (0, 1, 2) failed: " in result["afterwards"]
        for name in OPTIMIZERS:
            assert equal(result["handover"][name], trained_alone(OPTIMIZERS[name])), name
    assert "this worker has SGD on 8 parameters and the others have AdamW on 8" in results[2]["other optimizer"]
    assert "inner" in results[0]["other optimizer"]


def check_vectors(vectors: dict[str, list[float]]) -> None:
    assert vectors == {
        "sum": [6.0, 60.0],
        "max": [3.0, 30.0],
        "mean": pytest.approx([2.0, 20.0]),
        "weighted": [1.5, 15.0],
        "broadcast": [2.0, 20.0],
    }


def check_module(averaged: list[Tensor]) -> None:
    model = network()
    for before, after in zip((*model.parameters(), *model.buffers()), averaged, strict=True):
        expected = before.detach() + 0.75 if before.is_floating_point() else torch.tensor(20)
        torch.testing.assert_close(after, expected)


def check_gradients(averaged: list[Tensor | None]) -> None:
    model = Branches()
    for rank in range(2):
        (model(torch.full((2, 20), -1.0 - rank)).sum() / SIZE).backward()
    expected = [p.grad for p in model.parameters()]
    assert [g is None for g in averaged] == [g is None for g in expected] == [False] * 4 + [True] * 2
    for mine, theirs in zip(averaged, expected, strict=True):
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine, theirs)


def trained_alone(build: Callable[[nn.Module], torch.optim.Optimizer]) -> list[Tensor]:
    model = network()
    optimizer = build(model)
    train(model, optimizer, steps=3)
    optimizer.param_groups[0]["lr"] = 0.05
    train(model, optimizer, steps=1)
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


def test_an_optimizer_that_cannot_be_handed_over() -> None:
    model = network()
    lbfgs = torch.optim.LBFGS(model.parameters())
    lbfgs.state[next(model.parameters())]["old_dirs"] = [torch.zeros(1)]
    with pytest.raises(PolyrhythmError, match="optimizer LBFGS keeps old_dirs, a list"):
        outline_of(lbfgs)
    with pytest.raises(PolyrhythmError, match="option lr is a Tensor"):
        outline_of(torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)))
    with pytest.raises(PolyrhythmError, match="this worker has LBFGS on 8 parameters and the others have SGD on 8"):
        adopt(lbfgs, outline_of(OPTIMIZERS["SGD"](model)))


def test_fingerprints_see_every_bit_of_any_type() -> None:
    tensors = [torch.zeros(3, 2), torch.zeros(1, dtype=torch.bfloat16), torch.tensor(7), torch.zeros(0)]
    before = collectives.fingerprint(tensors)
    assert collectives.fingerprint([t.clone() for t in tensors]) == before
    tensors[0][2, 1] = -0.0
    assert collectives.fingerprint(tensors) != before
    assert collectives.fingerprint([torch.zeros(2, 3).t()]) == collectives.fingerprint([torch.zeros(3, 2)])
