"""Loader processes of the script's first step that go on reading for the session."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.order import options_of
from polyrhythm.runtime.worker.loader import _Sampler


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
        self._batches = read(DataLoader(loader.dataset, batch_sampler=_Sampler(self._order), **options_of(loader)))

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
