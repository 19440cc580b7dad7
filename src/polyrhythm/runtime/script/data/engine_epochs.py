"""Lets an engine of ignite end its epochs with the job's."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.loaders import length_of


class ShownLength(int):
    """A length that handlers may compute with; no count equals it, and ends an epoch, as long as `reading` says so."""

    _reading: Callable[[], bool]

    def __new__(cls, length: int, reading: Callable[[], bool]) -> Self:
        made = super().__new__(cls, length)
        made._reading = reading
        return made

    def __eq__(self, other: object) -> bool:
        return not self._reading() and int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # who loads a file with it need not have Polyrhythm


class EngineEpochs:
    """The length that an engine goes by, while the script reads a loader whose samples the job deals out.

    An engine asks its loader for its length before the job deals that out, and reads on into further epochs of the job
    until it has as many mini-batches. One that knows no length takes an epoch for over at the end of its data, and one
    that keeps a used-up iterator makes another only if it knows one.

    Args:
        engine: of ignite.
        length: that it has asked for; one that the user has given instead is left alone.
        reading: whether it is within such an epoch.
    """

    def __init__(self, engine: Any, length: int, reading: Callable[[], bool]) -> None:
        from ignite.engine import Events

        self._engine, self._state, self._length = engine, engine.state, ShownLength(length, reading)
        self._completed = Events.EPOCH_COMPLETED

    @contextmanager
    def batch(self, used_up: bool) -> Iterator[None]:
        """The engine asks for a mini-batch; the iterator that it asks may be `used_up`."""
        self._state.epoch_length = self._length if used_up else None
        try:
            yield
        except StopIteration:
            if not used_up:
                self._engine.add_event_handler(self._completed, self._show)
            raise
        self._state.epoch_length = self._length

    def _show(self) -> None:
        """The engine takes this epoch's length for that of all, and computes from it when its run is over."""
        self._state.epoch_length = self._length
        if self._state.max_iters is not None:
            self._state.max_epochs = None
        self._engine.remove_event_handler(self._show, self._completed)


def engine_epochs(frame: FrameType, loader: DataLoader[Any], reading: Callable[[], bool]) -> EngineEpochs | None:
    """For the engine in whose code a frame is, if it is one that goes by the length of this loader."""
    ignite = sys.modules.get("ignite.engine")
    engine = frame.f_locals.get("self")
    if ignite is None or not isinstance(engine, ignite.Engine):
        return None
    known, length = engine.state.epoch_length, length_of(loader)
    if length is None or not (known is None or isinstance(known, ShownLength) or known == length):
        return None
    return EngineEpochs(engine, length, reading)
