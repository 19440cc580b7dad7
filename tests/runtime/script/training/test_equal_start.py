"""Ranks that train apart, without DistributedDataParallel, are not made equal without a word."""

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script.training import equal_start
from polyrhythm.runtime.script.training.equal_start import check_equal, ends_of


class Group:
    """That of two ranks, of which this one is the first."""

    failure = None
    timeout = timedelta(seconds=0)

    def __init__(self) -> None:
        self.store: Any = HashStore()

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr(equal_start, "ScriptGroup", Group)
    monkeypatch.setattr(equal_start, "dist", SimpleNamespace(group=SimpleNamespace(WORLD=group)))
    return group


def optimizer_of(seed: int) -> torch.optim.Optimizer:
    torch.manual_seed(seed)
    return torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(("seed", "equal"), [(0, True), (1, False)], ids=["averaged by hand", "an ensemble"])
def test_only_ranks_that_have_made_the_same_step_are_made_equal(group: Group, seed: int, equal: bool) -> None:
    group.store.set("first-step-1-rank-1", json.dumps(ends_of([optimizer_of(seed)])))
    if equal:
        check_equal([optimizer_of(0)], 1, "train.py:8")
        return
    with pytest.raises(RefusalError, match=r"^train\.py:8: ranks 0 and 1 have other parameters after their first step"):
        check_equal([optimizer_of(0)], 1, "train.py:8")


def test_the_last_bits_may_differ(group: Group) -> None:
    """As where the ranks' processors round in other ways."""
    ends = [number * (1 + 1e-6) for number in ends_of([optimizer_of(0)])]
    group.store.set("first-step-0-rank-1", json.dumps(ends))
    check_equal([optimizer_of(0)], 0, "train.py:8")
    assert len(ends) == 4
