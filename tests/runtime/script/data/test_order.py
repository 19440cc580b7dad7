"""Which loaders the job can deal out."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from polyrhythm.runtime.script.data.order import deals_out

DATA = TensorDataset(torch.zeros(16))


@pytest.mark.parametrize(
    ("part", "deals"),
    [((4, 3), True), ((1, 0), False), ((2, 1), False), ((4, 0), False)],
    ids=["each has its own", "all have everything", "two have the same", "another's"],
)
def test_what_several_ranks_read_alike_is_not_dealt_out(
    monkeypatch: pytest.MonkeyPatch, part: tuple[int, int], deals: bool
) -> None:
    """As under torchrun each of them trains on it."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=part[0], rank=part[1])
    assert deals_out(DataLoader(DATA, 4, sampler=sampler), distributed=True) == deals
