"""Loader processes of the script that read for the session: those of its first step, and those that outlive epochs."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from polyrhythm.runtime.script.data.order import options_of
from polyrhythm.runtime.worker.loader import _Sampler


class PassStart:
    """What torch has settled when a script begins to read a loader, though its first mini-batch comes later."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self.sampler = copy.copy(loader.sampler) if loader.num_workers else loader.sampler
        """As it is now, where processes begin to read at once: an epoch that is set later is for the next pass."""
        self._generator = loader.generator or torch.default_generator
        self._state = self._generator.get_state()

    def draw_seed(self) -> None:
        """Draw the seed of loader processes, which torch draws now."""
        if not lasts(self._loader):
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)

    @contextmanager
    def seed(self, *, drawn: bool) -> Iterator[None]:
        """A block in which processes get that seed, or another if it is not `drawn` for them; nothing else draws it."""
        kept = self._generator.get_state()
        if drawn:
            self._generator.set_state(self._state)
        try:
            yield
        finally:
            self._generator.set_state(kept)


class _JobOrder(_Sampler):
    """A batch sampler that gives an order of the job for one pass, and the script's own after it."""

    def __init__(self, order: Iterator[list[int]], own: Any) -> None:
        super().__init__(order)
        self._own = own
        self.begun = False

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._own) if self.begun else super().__iter__()


def lasts(loader: DataLoader[Any]) -> bool:
    """Whether it has processes that outlive an epoch; torch starts them, and draws their seed, once."""
    return loader.persistent_workers and loader._iterator is not None


def read_in_order(
    loader: DataLoader[Any], order: Iterator[list[int]], read: Callable[[DataLoader[Any]], Iterator[Any]] = iter
) -> Iterator[Any]:
    """Begin to read the data of a loader in an order of the job, by its own processes if they outlive an epoch."""
    sampler = _JobOrder(order, loader.batch_sampler)
    if (batches := loader._iterator) is None:
        made = DataLoader(loader.dataset, batch_sampler=sampler, **options_of(loader))
        batches = cast(_BaseDataLoaderIter, read(made))
        loader._iterator = made._iterator
    else:
        batches._index_sampler = sampler
        batches._reset(loader)
    sampler.begun = True
    return batches


class Order:
    """Indices of mini-batches, and which of them a loader has asked for and not given yet.

    Args:
        rest: those that it has not asked for; may be replaced, also at its end.
    """

    def __init__(self, rest: Iterator[list[int]]) -> None:
        self.rest = rest
        self.ahead: deque[list[int]] = deque()

    def __iter__(self) -> "Order":
        return self

    def __next__(self) -> list[int]:
        batch = next(self.rest)
        self.ahead.append(batch)
        return batch


class Reading:
    """What loader processes read for the warm-up step, and go on to read for the session.

    Processes that are started anew would draw other random numbers, for crops and the like, than those that go on.

    Args:
        loader: whose order they follow at first.
        read: how torch begins to read one.
    """

    def __init__(self, loader: DataLoader[Any], read: Callable[[DataLoader[Any]], Iterator[Any]]) -> None:
        self._order = Order(iter(loader.batch_sampler or ()))
        self._batches = read_in_order(loader, self._order, read)

    def __iter__(self) -> "Reading":
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._order.ahead.popleft()
        return batch

    def followed_by(self, order: Iterator[list[int]]) -> Iterator[list[int]] | None:
        """Read in this order from now on, if it begins with what is read ahead; otherwise it is given back whole."""
        first = list(islice(order, len(self._order.ahead)))
        if first != list(self._order.ahead):
            return chain(first, order)
        self._order.rest = order
        return None
