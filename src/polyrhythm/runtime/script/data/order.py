"""An epoch of a script's own loader as one permutation, in which synchronous mode reads what torch's sampler would
deal out.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
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
from polyrhythm.runtime.wire.protocol import Term

JOB_SEED = 1
"""Of the order in which the job reads the data of a script for one process."""

OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    *("prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)
"""Arguments of a DataLoader that do not say which samples it reads."""


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in OPTIONS if hasattr(loader, name)}


def deals_out(loader: DataLoader[Any], distributed: bool) -> bool:
    """Whether a loader deals out every sample of its data set once, in an order that the job knows.

    Args:
        loader: the script's.
        distributed: whether the script knows of ranks, and deals out the samples by itself.
    """
    if isinstance(loader.dataset, IterableDataset):
        return False
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.sampler
    if not distributed:
        whole = not getattr(sampler, "replacement", False) and getattr(sampler, "_num_samples", None) is None
        return type(sampler) in (RandomSampler, SequentialSampler) and whole
    return (isinstance(sampler, DistributedSampler) and splits_among_ranks(sampler)) and (
        type(sampler) is DistributedSampler or takes_turns(sampler, len(loader.dataset))  # type: ignore[arg-type]
    )


def splits_among_ranks(sampler: DistributedSampler[Any]) -> bool:
    """Whether each rank has a part; else several have the same, as ranks of one model, or all have everything.

    One that does not say, as a subclass may, has this rank's part.
    """
    world = dist.get_world_size(), dist.get_rank()
    return (getattr(sampler, "num_replicas", world[0]), getattr(sampler, "rank", world[1])) == world


def takes_turns(sampler: DistributedSampler[Any], samples: int) -> bool:
    """Whether this rank has its turns of an order that has every sample once; asking draws no random numbers.

    One that draws from a stream of its process has another order each time, and the script's next numbers are others.
    """
    with numbers_kept(sampler):
        order = probed(sampler, samples)
    if order is None:
        return False
    with numbers_kept(sampler):
        before = state_words()
        own = list(copy.copy(sampler))
        drawn = state_words() != before
    if drawn:
        return False
    world, rank = dist.get_world_size(), dist.get_rank()
    turns = samples // world if getattr(sampler, "drop_last", False) else -(-samples // world)
    return own == [order[(rank + turn * world) % samples] for turn in range(turns)]


@contextmanager
def numbers_kept(*sources: Any) -> Iterator[None]:
    """A block after which all random numbers come, also from generators of `sources`, that would have without it."""
    values = (value for source in sources for value in getattr(source, "__dict__", {}).values())  # a list has none
    generators = [value for value in values if isinstance(value, torch.Generator)]
    streams = random_states()
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        restore_random(streams)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def random_states() -> tuple[Any, ...]:
    """Where torch's, numpy's and Python's random numbers stand."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def state_words() -> tuple[object, ...]:
    """The same, to be compared."""
    of_torch, of_numpy, of_python = random_states()
    return of_torch.numpy().tobytes(), of_numpy[1].tobytes(), of_numpy[2:], of_python


def restore_random(states: tuple[Any, ...]) -> None:
    of_torch, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


def probed(sampler: DistributedSampler[Any], samples: int) -> list[int] | None:
    """The order in which ranks would take turns; none if it does not have every sample once."""
    probe: Sampler[int] = copy.copy(sampler)
    vars(probe).update(rank=0, num_replicas=1, num_samples=samples, total_size=samples)
    order = list(probe)
    return order if len(order) == samples and np.array_equal(np.sort(order), np.arange(samples)) else None


def shared_order(sampler: Any, samples: int, epoch: int) -> list[int]:
    """All samples in the order in which ranks would take turns.

    A sampler for one process draws from torch's generator, of which every rank has another; the job has an order of
    its own then.
    """
    if isinstance(sampler, RandomSampler):
        generator = torch.Generator().manual_seed(JOB_SEED * 1_000_003 + epoch)
        return torch.randperm(samples, generator=generator).tolist()
    if not isinstance(sampler, DistributedSampler):
        return list(range(samples))
    order = probed(sampler, samples)
    if order is None:
        raise refuse(f"sampler {type(sampler).__name__} does not deal out every sample of the data set once")
    return order


def sampler_terms(loader: DataLoader[Any]) -> dict[str, Term]:
    """What the orders that all ranks make by themselves follow from.

    Not the sampler's epoch: a rank may look at the loader before it sets that, and another not.
    """
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler):
        return {"shuffle": isinstance(sampler, RandomSampler)}
    shuffle, seed = bool(sampler.shuffle), {"seed": int(sampler.seed)} if sampler.shuffle else {}
    return {"shuffle": shuffle, **seed, "batch_size": loader.batch_size or 0, "drop_last": bool(loader.drop_last)}


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


def smallest_batch(samples: int, workers: int, batch_size: int) -> int:
    """Samples of the smallest mini-batch of an epoch, whether all workers make its last step together or one alone.

    >>> smallest_batch(123, 2, 4), smallest_batch(125, 2, 4), smallest_batch(124, 2, 4)
    (1, 1, 2)
    """
    together, alone = samples % (workers * batch_size), samples % batch_size
    sizes = (max(1, together // workers) if together else batch_size, alone or batch_size)
    return min(sizes)
