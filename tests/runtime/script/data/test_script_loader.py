"""How many samples of a script's loader an epoch of the job has."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from polyrhythm.errors import RefusalError
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
    assert made_of(loader).samples == dealt


def made_of(loader: DataLoader[Any]) -> ScriptLoader:
    counts: dict[str, Any] = {"parts": 1, "first_epoch": 0, "counted_from": 0, "processed": (8,)}
    return ScriptLoader(loader, Mock(), Mock(), workers=RANKS, ranks=RANKS, **counts)


class Growing(TensorDataset):
    """The script may add to it between two epochs."""

    def grow(self) -> None:
        self.tensors = tuple(torch.cat([tensor, tensor]) for tensor in self.tensors)


def loader_of(data: TensorDataset) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(data, RANKS, 0)
    return DataLoader(data, 2, sampler=sampler, collate_fn=len)


def test_data_that_have_grown_are_not_cut_to_their_first_length() -> None:
    data = Growing(torch.zeros(16))
    made = made_of(loader_of(data))
    made.renew(loader_of(data))
    data.grow()
    with pytest.raises(RefusalError, match="had 16 samples as the job began, and have 32 now"):
        made.renew(loader_of(data))


def test_a_mini_batch_that_has_grown_is_not_cut_to_its_first_size() -> None:
    loader = loader_of(TensorDataset(torch.zeros(16)))
    made = made_of(loader)
    loader.batch_sampler.batch_size = 4  # type: ignore[union-attr]
    with pytest.raises(RefusalError, match="a batch size of 2 as the job began, and its batch sampler has 4 now"):
        made.renew(loader)


def test_what_an_epochs_loader_does_with_its_samples_holds_from_then_on() -> None:
    first, second = loader_of(TensorDataset(torch.zeros(16))), loader_of(TensorDataset(torch.zeros(16)))
    made = made_of(first)
    made.renew(second)
    second.collate_fn = sum
    made._begin_epoch()
    assert made._options["collate_fn"] is sum
