"""An epoch of a script's own loader as one permutation, in which synchronous mode reads what torch's sampler would
deal out.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from polyrhythm.runtime.script.notices import refuse

JOB_SEED = 1
"""Of the order in which the job reads the data of a script for one process."""

OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    *("prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)
"""Arguments of a DataLoader that do not say which samples it reads."""


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in OPTIONS if hasattr(loader, name)}


def check_loader(loader: DataLoader[Any], place: str, distributed: bool) -> None:
    """Whether workers can share this loader's data set.

    Args:
        loader: the script's.
        place: the line that made it.
        distributed: whether the script knows of ranks, and deals out the samples by itself.

    Raises:
        RefusalError: if they cannot.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise refuse("an IterableDataset cannot be shared out; give the loader a map-style data set", place)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise refuse("a loader with a batch sampler of its own cannot be shared out; use batch_size", place)
    known = (DistributedSampler,) if distributed else (RandomSampler, SequentialSampler)
    sampler = loader.sampler
    if not isinstance(sampler, known):
        names = " or ".join(kind.__name__ for kind in known)
        raise refuse(f"the loader's {type(sampler).__name__} cannot be shared out; use {names}", place)
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler._num_samples is not None):
        raise refuse("a RandomSampler with replacement or num_samples cannot be shared out; leave these out", place)


def shared_order(sampler: Any, samples: int, epoch: int) -> list[int]:
    """All samples in the order in which ranks would take turns.

    A sampler for one process draws from torch's generator, of which every rank has another; the job has an order of
    its own then.

    Raises:
        RefusalError: for a sampler that does not deal out every sample once.
    """
    if isinstance(sampler, RandomSampler):
        generator = torch.Generator().manual_seed(JOB_SEED * 1_000_003 + epoch)
        return torch.randperm(samples, generator=generator).tolist()
    if not isinstance(sampler, DistributedSampler):
        return list(range(samples))
    probe: Sampler[int] = copy.copy(sampler)
    vars(probe).update(rank=0, num_replicas=1, num_samples=samples, total_size=samples)
    order = list(probe)
    if len(order) != samples or not np.array_equal(np.sort(order), np.arange(samples)):
        raise refuse(f"sampler {type(sampler).__name__} does not deal out every sample of the data set once")
    return order


def arrange(order: Sequence[int], workers: int, batch_size: int, parts: int = 1) -> list[int]:
    """Turn samples in the order of turns into positions, of which `EpochPlan` gives each worker a contiguous range.

    In every step worker i then gets, part by part, the samples that `DistributedSampler` would give it.

    >>> arrange(range(8), workers=2, batch_size=2)
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    array = np.asarray(order)
    step = workers * batch_size * parts
    full = len(array) // step * step
    steps = array[:full].reshape(-1, parts, batch_size, workers).transpose(0, 3, 1, 2)
    rest = array[full:]
    if len(rest) % workers == 0:
        rest = rest.reshape(-1, workers).T
    return [*steps.reshape(-1).tolist(), *rest.reshape(-1).tolist()]
