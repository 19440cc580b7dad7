"""An epoch of a script's own loader as one permutation, in which lockstep reads what torch's sampler would deal out."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler, SequentialSampler

from polyrhythm.runtime.adapt.notices import refuse

OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    *("prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)
"""Arguments of a DataLoader that do not say which samples it reads."""


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """How a loader was made, but for its samples."""
    return {name: getattr(loader, name) for name in OPTIONS if hasattr(loader, name)}


def check_loader(loader: DataLoader[Any], place: str) -> None:
    """Whether workers can share this loader's data set.

    Raises:
        RefusalError: naming the line that made it.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise refuse("an IterableDataset cannot be shared out; give the loader a map-style data set", place)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise refuse("a loader with a batch sampler of its own cannot be shared out; use batch_size", place)
    if not isinstance(loader.sampler, DistributedSampler):
        kind = type(loader.sampler).__name__
        raise refuse(f"the loader's {kind} does not share samples among ranks; use a DistributedSampler", place)


def shared_order(sampler: Sampler[int], samples: int) -> list[int]:
    """All samples in the order in which ranks would take turns.

    Raises:
        RefusalError: for a sampler that does not deal out every sample once.
    """
    if isinstance(sampler, SequentialSampler):
        return list(range(samples))
    assert isinstance(sampler, DistributedSampler), "other samplers are refused before"
    probe = copy.copy(sampler)
    probe.rank, probe.num_replicas, probe.num_samples, probe.total_size = 0, 1, samples, samples
    order = list(probe)
    if sorted(order) != list(range(samples)):
        raise refuse(f"sampler {type(sampler).__name__} does not deal out every sample of the data set once")
    return order


def arrange(order: Sequence[int], workers: int, batch_size: int, parts: int = 1) -> list[int]:
    """Turn samples in the order of turns into positions, of which `Strides` gives each worker a contiguous range.

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
