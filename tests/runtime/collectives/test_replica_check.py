"""Replicas that should be equal are compared, on real gloo processes."""

import math

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from polyrhythm.errors import ReplicasDifferError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.replica_check import TOLERANCE, check_equal, looked_at, weighted_sum
from polyrhythm.testing.processes import run_workers

SIZE = 2


def said(rank: int, port: int, factor: float, own_rate: bool, odd: tuple[float, ...] = ()) -> str:
    """What a member is told whose parameters are so much larger than those of the one before it.

    Args:
        rank: of the member.
        port: of the store.
        factor: by which parameters grow from member to member.
        own_rate: whether the second one has a learning rate of its own.
        odd: a number that each member has in the place of its first weight.
    """
    store = TCPStore("127.0.0.1", port, is_master=False)
    generation = Generation(store, "all", range(SIZE), rank)
    torch.manual_seed(0)
    weights = nn.Conv2d(3, 8, 3)
    weights.weight.data = weights.weight.data.contiguous(memory_format=torch.channels_last)
    model = nn.Sequential(weights, nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 if own_rate and rank else 0.25)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor**rank)
        if odd:
            weights.weight[0, 0, 0, 0] = odd[rank]
    told = ""
    try:
        check_equal(generation, list(model.parameters()), optimizer)
    except ReplicasDifferError as error:
        told = str(error)
    store.set(f"through/{rank}", "")
    store.wait([f"through/{other}" for other in range(SIZE)])
    return told


@pytest.mark.parametrize(
    ("factor", "told"), [(1.0, False), (1.0 + TOLERANCE / 20, False), (1.0 + 20 * TOLERANCE, True)]
)
def test_replicas_may_be_as_far_apart_as_rounding_explains(store: TCPStore, factor: float, told: bool) -> None:
    first, second = run_workers(said, SIZE, store.port, factor, False)
    assert first == second
    assert bool(first) == told
    assert not told or "they make different optimizer steps" in first


@pytest.mark.parametrize("odd", [(math.nan, math.nan), (math.inf, math.nan)])
def test_a_number_that_is_finite_nowhere_hides_no_others(store: TCPStore, odd: tuple[float, ...]) -> None:
    first, second = run_workers(said, SIZE, store.port, 1.5, False, odd)
    assert first == second
    assert "% of their norm apart" in first
    assert "nan" not in first


@pytest.mark.parametrize("odd", [(0.0, math.nan), (math.inf, 0.0)])
def test_a_number_that_is_finite_on_some_only_is_apart(store: TCPStore, odd: tuple[float, ...]) -> None:
    first, second = run_workers(said, SIZE, store.port, 1.0, False, odd)
    assert first == second
    assert "are finite on some and not on others" in first


def test_what_is_finite_nowhere_is_not_apart(store: TCPStore) -> None:
    assert run_workers(said, SIZE, store.port, 1.0, False, (math.nan, math.nan)) == ["", ""]


def test_a_difference_that_adds_up_to_nothing_is_seen() -> None:
    """So is that of the last layer before a softmax, whose gradients do."""
    apart = torch.tensor([[1.0, 2.0, -1.0], [-1.0, -2.0, 1.0]])
    assert weighted_sum(looked_at(apart)).abs() > 0.1


def test_both_parts_of_complex_numbers_are_looked_at() -> None:
    assert looked_at(torch.tensor([1 + 2j, 3 - 4j])).tolist() == [1.0, 2.0, 3.0, -4.0]


def test_rates_that_differ_are_named(store: TCPStore) -> None:
    first, second = run_workers(said, SIZE, store.port, 1.5, True)
    assert first == second
    assert "their learning rates are 0.25 to 0.5" in first
