"""Which loaders the job can deal out."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from polyrhythm.runtime.script.data.order import deals_out, numbers_kept

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


class Ranked(DistributedSampler[Any]):
    """Each rank has a block, not every nth sample."""

    def __iter__(self) -> Any:
        return iter(range(self.rank * self.num_samples, (self.rank + 1) * self.num_samples))


class OwnShuffle(DistributedSampler[Any]):
    """Each rank shuffles what it has by a seed of its own."""

    def __iter__(self) -> Any:
        indices = list(range(self.rank, len(DATA), self.num_replicas))
        order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(self.rank))
        return iter(indices[place] for place in order.tolist())


class DrawnOrder(DistributedSampler[Any]):
    """All ranks draw the same order from torch's generator."""

    def __iter__(self) -> Any:
        return iter(torch.randperm(len(DATA)).tolist()[self.rank :: self.num_replicas])


class EpochOrder(DistributedSampler[Any]):
    """All ranks draw the same order by a seed."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(len(DATA), generator=generator).tolist()[self.rank :: self.num_replicas])


class Nameless(DistributedSampler[Any]):
    """It has names of its own for its rank."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.part = slice(rank, None, ranks)

    def __iter__(self) -> Any:
        return iter(range(16)[self.part])


@pytest.mark.parametrize(
    ("sampler", "deals"),
    [
        (Ranked(DATA, 4, 3), False),
        (OwnShuffle(DATA, 4, 3), False),
        (EpochOrder(DATA, 4, 3), True),
        (DrawnOrder(DATA, 4, 3), False),
        (Nameless(3, 4), False),
    ],
    ids=["a block", "a shuffle of its own", "taking turns", "taking turns in another order each time", "nameless"],
)
def test_a_sampler_of_the_scripts_own_is_dealt_out_if_ranks_take_turns(
    monkeypatch: pytest.MonkeyPatch, sampler: Any, deals: bool
) -> None:
    """Whichever it is, the script's random numbers stay those of torchrun.

    One that draws from these has its next order after this one: it is the script's to ask.
    """
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    before = torch.get_rng_state()
    assert deals_out(DataLoader(DATA, 4, sampler=sampler), distributed=True) == deals
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sampler", [RandomSampler(DATA, generator=torch.Generator()), [2, 1, 0], range(3)])
def test_random_numbers_are_kept_whatever_a_sampler_is(sampler: Any) -> None:
    numbers = torch.Generator()
    loader = DataLoader(DATA, 4, sampler=sampler, generator=numbers)
    streams = [numbers, torch.default_generator, getattr(sampler, "generator", numbers)]
    before = [stream.get_state() for stream in streams]
    with numbers_kept(loader, loader.sampler):
        assert len(list(loader)) > 0
    assert all(torch.equal(stream.get_state(), state) for stream, state in zip(streams, before, strict=True))
