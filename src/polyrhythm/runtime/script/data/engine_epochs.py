"""Lets an engine of ignite end its epochs with the job's."""

import sys
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.loaders import length_of


class ShownLength(int):
    """A length that handlers may compute with, but that no count equals: an engine does not end its epoch by it."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

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
    """

    def __init__(self, engine: Any, length: int) -> None:
        from ignite.engine import Events

        self._engine, self._state, self._length = engine, engine.state, ShownLength(length)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._show)

    def _show(self) -> None:
        """The engine would take this epoch's length for that of all, and perhaps the last one for over, too."""
        from ignite.engine import Events

        self._state.epoch_length = self._length
        self._engine.remove_event_handler(self._show, Events.EPOCH_COMPLETED)

    def before_batch(self, used_up: bool) -> None:
        self._state.epoch_length = self._length if used_up else None

    def given(self) -> None:
        self._state.epoch_length = self._length


def engine_epochs(frame: FrameType, loader: DataLoader[Any]) -> EngineEpochs | None:
    """For the engine in whose code a frame is, if it is one that goes by the length of this loader."""
    ignite = sys.modules.get("ignite.engine")
    engine = frame.f_locals.get("self")
    if ignite is None or not isinstance(engine, ignite.Engine):
        return None
    known, length = engine.state.epoch_length, length_of(loader)
    if length is None or not (known is None or isinstance(known, ShownLength) or known == length):
        return None
    return EngineEpochs(engine, length)
