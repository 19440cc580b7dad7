"""A script that was written for a single process: what its loaders read and who may write, once it runs on many."""

import functools
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from polyrhythm.runtime.script.data.file_calls import turn_to_own
from polyrhythm.runtime.script.data.order import JOB_SEED, options_of, random_states, restore_random, shared_order
from polyrhythm.runtime.script.data.own_files import OwnFiles
from polyrhythm.runtime.script.notices import innermost_caller
from polyrhythm.runtime.worker.loader import _Sampler


def warm_up_source(loader: DataLoader[Any], read: Callable[[DataLoader[Any]], Iterator[Any]]) -> Iterator[Any]:
    """All mini-batches of the job's first epoch in order, the same on every rank.

    Only the first rank's step of the warm-up step counts: the job starts from its state, after its samples.
    """
    order = shared_order(loader.sampler, len(loader.dataset), 0)  # type: ignore[arg-type]
    assert loader.batch_size is not None, "the job deals it out"
    batches = BatchSampler(order, loader.batch_size, loader.drop_last)
    return read(DataLoader(loader.dataset, batch_sampler=batches, **options_of(loader)))


class SharedRandom:
    """Random numbers of torch, numpy and Python that are the same on every rank, while it is entered.

    Example:
        >>> numbers, other = SharedRandom(0), SharedRandom(0)
        >>> with numbers:
        ...     first, second = torch.rand(()), torch.rand(())
        >>> with other:
        ...     assert torch.rand(()) == first
        >>> with other:
        ...     assert torch.rand(()) == second
    """

    def __init__(self, epoch: int) -> None:
        outer = random_states()
        seed = JOB_SEED * 1_000_003 + epoch
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self._inner = random_states()
        restore_random(outer)

    def __enter__(self) -> None:
        self._outer = random_states()
        restore_random(self._inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner = random_states()
        restore_random(self._outer)


def drawn_alike(batches: Iterable[list[int]], epoch: int) -> Iterator[list[int]]:
    """What a batch sampler draws in an epoch, on every rank the same."""
    numbers = SharedRandom(epoch)
    with numbers:
        iterator = iter(batches)
    while True:
        with numbers:
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def every_nth(
    loader: DataLoader[Any], original: Callable[[DataLoader[Any]], Iterator[Any]], epoch: int, first: int, step: int
) -> Iterator[Any]:
    """Mini-batches that one process would read: that of number `first`, and every one `step` after it."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return islice(original(loader), first, None, step)
    batches = islice(drawn_alike(loader.batch_sampler, epoch), first, None, step)
    return iter(DataLoader(loader.dataset, batch_sampler=_Sampler(batches), **options_of(loader)))


SETTERS: tuple[tuple[Any, str], ...] = (
    (random, "seed"),
    (random, "setstate"),
    (np.random, "seed"),
    (np.random, "set_state"),
    (torch, "set_rng_state"),
)
"""By which a script sets a seed, or goes on from a state that it has kept; torch itself tells of its seed."""


class SharedStart:
    """What all ranks draw until it shows that the script knows of them: the same numbers, as one process would.

    So data that are drawn, or split at random, are the same on every rank, though the script sets no seed.

    Args:
        job: what tells this run from others, the same on every rank.
        rank: of this worker.

    Example:
        >>> start = SharedStart("job 1", rank=1)
        >>> first = torch.rand(()), random.random()
        >>> SharedStart("job 1", rank=0).part()
        >>> (torch.rand(()), random.random()) == first
        False
    """

    def __init__(self, job: str, rank: int) -> None:
        self._rank, self._seed = rank, zlib.crc32(job.encode())
        self._unseeded: list[Any] = [random, np.random, torch]
        torch.manual_seed(self._seed)
        for module in (random, np.random):
            module.seed(self._seed)
        for module, name in SETTERS:
            setattr(module, name, self._watched(module, getattr(module, name)))

    def part(self) -> None:
        """The script knows of its ranks: each has its own numbers from now on, as far as the script has set no seed."""
        own = (self._seed + 1 + self._rank) % 2**32
        for module in self._unseeded.copy():
            if module is not torch:
                module.seed(own)
            elif torch.initial_seed() == self._seed:
                torch.manual_seed(own)

    def _watched(self, module: Any, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> None:
            if not called_by_torch():  # which puts back what it had, as fork_rng does
                self._unseeded = [each for each in self._unseeded if each is not module]
            original(*args, **kwargs)

        return seed


def called_by_torch() -> bool:
    """Whether what has called the caller of this is torch itself."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0] == "torch"


def share_folders(alone: Callable[[], bool]) -> None:
    """Several workers make a folder that one process would make: who comes second finds it, and goes on.

    Args:
        alone: whether the script is one for a single process, as far as is known.
    """
    original, begun = os.mkdir, time.time()

    @functools.wraps(original)
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        while True:
            try:
                return original(path, *args, **kwargs)
            except FileExistsError:
                if not alone() or innermost_caller() == tempfile.__file__:
                    raise  # tempfile looks for a name that nobody has
                with suppress(FileNotFoundError):  # who has made it has moved it meanwhile
                    if made_since(path, begun):
                        return None
                    raise

    os.mkdir = mkdir


def made_since(path: Any, moment: float) -> bool:
    """Whether this is a folder that was not there at a moment; file systems round to 2 s at most.

    Raises:
        FileNotFoundError: if there is nothing.
    """
    known = Path(path)
    known.lstat()  # a link to nothing is there, and stays
    return known.is_dir() and known.stat().st_ctime >= moment - 2.0


def keep_quiet(rank: int, files: OwnFiles) -> None:
    """From now on only the first rank writes; the others draw other random numbers than it."""
    if rank == 0:
        return
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    turn_to_own(files)
    if written := sys.modules.get("torch.utils.tensorboard.writer"):
        written.FileWriter.add_event = lambda *_, **__: None
    torch.manual_seed(torch.initial_seed() + rank)
    random.seed(random.getrandbits(32) + rank)
    np.random.seed((np.random.randint(2**31) + rank) % 2**32)
