"""What a server adds up for workers that average their replicas: contributions come in, and the sum goes out to all.

Contributions are added in the order of the ranks, as far as they are there, so that everyone gets the same bits, and a
second run too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from polyrhythm.errors import FrameError
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.shard_protocol import Add, Summed
from polyrhythm.runtime.wire.worker_buffers import as_bytes

MOST: Final = 16
"""Numbers of a contribution for each byte of the model: replicas bring their buffers along, optimizers their state."""


MOST_OPEN: Final = 1024
"""Sums that may be incomplete at a time."""


@dataclass(slots=True)
class Sum:
    size: int
    elements: int
    channels: list[Channel] = field(default_factory=list)
    waiting: dict[int, Tensor | None] = field(default_factory=dict)
    added: int = 0
    total: Tensor | None = None

    def lacks(self, message: Add) -> bool:
        fits = (message.size, message.elements) == (self.size, self.elements)
        return fits and self.added <= message.rank < self.size and message.rank not in self.waiting

    def add(self, rank: int, part: Tensor | None) -> None:
        """Add what is due, in the order of the ranks; None is nothing."""
        self.waiting[rank] = part
        while self.added in self.waiting:
            due = self.waiting.pop(self.added)
            self.added += 1
            if due is not None:
                self.total = due if self.total is None else self.total.add_(due)


class Sums:
    """All sums that are not complete at one server.

    Args:
        model_bytes: of the model, once it is known.

    Attributes:
        open: by epoch and number.
    """

    def __init__(self, model_bytes: Callable[[], int]) -> None:
        self._model_bytes = model_bytes
        self.open: dict[tuple[str, int], Sum] = {}

    def check(self, message: Add) -> None:
        # A worker cannot fill the server's memory.
        if not 0 < message.elements <= MOST * self._model_bytes():
            raise FrameError(f"a contribution of {message.elements} numbers was announced, which the model cannot have")

    def add(self, channel: Channel, message: Add, part: Tensor | None) -> None:
        key = message.generation, message.number
        if len(self.open) >= MOST_OPEN and key not in self.open:
            raise FrameError(f"{channel.peer} began one of more than {MOST_OPEN} sums that are not complete")
        one = self.open.setdefault(key, Sum(message.size, message.elements))
        if not one.lacks(message):
            raise FrameError(f"{channel.peer} sent {message}, which does not fit to what others sent")
        one.channels.append(channel)
        one.add(message.rank, part)
        if one.added == one.size:
            del self.open[key]
            total = torch.zeros(one.elements) if one.total is None else one.total
            for each in one.channels:
                each.send(Summed(*key), as_bytes(total), Payload("float32", one.elements))

    def forget(self, generation: str) -> None:
        """A member has gone on to another epoch, so that these sums will never be complete."""
        self.open = {key: one for key, one in self.open.items() if key[0] != generation}


class SumAcceptor:
    def __init__(self, sums: Sums, channel: Channel) -> None:
        self._sums = sums
        self._channel = channel
        self._incoming: Tensor | None = None
        self._generation = ""

    def received(self, message: Any) -> None:
        if not isinstance(message, Add):
            raise FrameError(f"{self._channel.peer} sent {type(message).__name__} where sums are made")
        self._sums.check(message)
        if message.generation != self._generation:
            self._sums.forget(self._generation)
            self._generation = message.generation
        part, self._incoming = self._incoming, None
        self._sums.add(self._channel, message, part)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if not isinstance(message, Add) or payload != Payload("float32", message.elements):
            raise FrameError(f"{self._channel.peer} announced {payload.nbytes} bytes that are no contribution")
        self._sums.check(message)
        self._incoming = torch.empty(payload.elements)
        return as_bytes(self._incoming)

    def lost(self, reason: str) -> None:
        """The coordinator tells the other members."""
