"""Averages and handover, on real gloo processes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives import ops as collectives
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.testing.processes import run_workers
from tests.runtime.ddp_models import Branches, network

SIZE = 3


def worker(rank: int, port: int) -> dict[str, Any]:
    """Everything that these tests look at, in one set of processes."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    generation = Generation(store, "all", range(SIZE), rank)
    results = {
        "vectors": vectors(generation),
        "module": module_mean(generation),
        "gradients": gradients(generation),
        "records": records(generation),
        "handover": handed_over(generation),
    }
    # A broadcast is over for its source before the others have it: nobody gives up before all are through.
    store.set(f"through/{rank}", "")
    store.wait([f"through/{other}" for other in range(SIZE)])
    return {**results, "afterwards": afterwards(generation)}


def vectors(generation: Generation) -> dict[str, list[float]]:
    def own() -> Tensor:
        return torch.tensor([1.0, 10.0]) * (generation.rank + 1)

    results = {name: own() for name in ("sum", "max", "mean", "weighted", "broadcast", "infinite")}
    collectives.all_reduce(generation, results["sum"])
    collectives.all_reduce(generation, results["max"], ReduceOp.MAX)
    collectives.mean(generation, results["mean"])
    collectives.mean(generation, results["weighted"], share=(0.5, 0.5, 0.0)[generation.rank])
    collectives.broadcast(generation, results["broadcast"], source=1)
    if generation.rank == 2:  # which contributes nothing
        results["infinite"][0] = float("inf")
    collectives.mean(generation, results["infinite"], share=(0.5, 0.5, 0.0)[generation.rank])
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


def handed_over(generation: Generation) -> list[Any]:
    """Tensors of several types as rank 1 has them."""
    own = [
        torch.full((1, 2), float(generation.rank)),
        torch.tensor(10 + generation.rank),
        torch.full((1,), generation.rank / 2),
    ]
    own[2] = own[2].bfloat16()
    hand_over_tensors(generation, own, source=1)
    return [tensor.tolist() for tensor in own]


def records(generation: Generation) -> list[bytes]:
    """Records at once; the second exchange is not mistaken for the first."""
    generation.open_peer_sockets()
    generation.gather(b"first")
    return generation.gather(bytes([generation.rank]))


def afterwards(generation: Generation) -> str:
    """Every collective of a generation that was given up says so."""
    generation.abort("enough")
    with pytest.raises(GroupError, match=r"generation 'all' among \(0, 1, 2\) failed: "):
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
        assert result["records"] == [b"\0", b"\1", b"\2"]
        assert "allreduce in generation 'all' among (0, 1, 2) failed: " in result["afterwards"]
        assert result["handover"] == [[[1.0, 1.0]], 11, [0.5]]


def check_vectors(vectors: dict[str, list[float]]) -> None:
    assert vectors == {
        "sum": [6.0, 60.0],
        "max": [3.0, 30.0],
        "mean": pytest.approx([2.0, 20.0]),
        "weighted": [1.5, 15.0],
        "infinite": [1.5, 15.0],
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
