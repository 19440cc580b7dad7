"""How many samples of a script's loader an epoch of the job has."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from polyrhythm.runtime.script.data.script_loader import ScriptLoader

RANKS = 4


@pytest.mark.parametrize(
    ("samples", "of_sampler", "of_loader", "dealt"),
    [(10, False, False, 10), (10, True, False, 8), (8, True, False, 8), (22, True, True, 16), (22, False, True, 16)],
)
def test_what_the_sampler_drops_is_not_dealt_out(samples: int, of_sampler: bool, of_loader: bool, dealt: int) -> None:
    """Else the last step of an epoch would be larger than under torchrun."""
    data = TensorDataset(torch.zeros(samples))
    sampler: DistributedSampler[Any] = DistributedSampler(data, RANKS, 0, drop_last=of_sampler)
    loader = DataLoader(data, 2, sampler=sampler, drop_last=of_loader)
    counts: dict[str, Any] = {"parts": 1, "first_epoch": 0, "counted_from": 0, "processed": (8,)}
    made = ScriptLoader(loader, Mock(), Mock(), workers=RANKS, ranks=RANKS, **counts)
    assert made.samples == dealt
