"""A script that was written for a single process: what its loaders read and who may write, once it runs on many."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from polyrhythm.runtime.script.order import options_of, shared_order


def shareable(loader: DataLoader[Any]) -> bool:
    plain = type(loader.batch_sampler) is BatchSampler and type(loader.sampler) in (RandomSampler, SequentialSampler)
    return plain and loader.batch_size is not None and not isinstance(loader.dataset, IterableDataset)


def warm_up_source(loader: DataLoader[Any]) -> Iterator[Any]:
    """All mini-batches of the job's first epoch in order, the same on every rank.

    Only the first rank's step of the warm-up step counts: the job starts from its state, after its samples.
    """
    order = shared_order(loader.sampler, len(loader.dataset), 0)  # type: ignore[arg-type]
    assert loader.batch_size is not None, "shareable"
    batches = BatchSampler(order, loader.batch_size, loader.drop_last)
    return iter(DataLoader(loader.dataset, batch_sampler=batches, **options_of(loader)))


def keep_quiet(rank: int) -> None:
    """From now on only the first rank writes; the others draw other random numbers than it."""
    if rank == 0:
        return
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    torch.save = lambda *_, **__: None
    torch.manual_seed(torch.initial_seed() + rank)
