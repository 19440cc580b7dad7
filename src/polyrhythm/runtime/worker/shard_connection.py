"""A worker's end of the connection to one shard: its shared memory, and the answer that it waits for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import FrameError
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.segments import ShardSpan, packed_elements
from polyrhythm.runtime.wire.shard_protocol import (
    OF_SHARD,
    Broken,
    Download,
    Downloaded,
    Loaded,
    MoreRoom,
    NewBuffer,
    Opened,
    Pull,
    Pulled,
    Rejected,
    Upload,
)
from polyrhythm.runtime.wire.shared_memory import SharedVector
from polyrhythm.runtime.wire.worker_buffers import as_bytes, wire_name
from polyrhythm.training.compression import NOTHING


class Port:
    """The connection to one shard.

    Args:
        control: called with what is not for the data plane.
        failed: called when the shard has refused this worker or is gone.
    """

    def __init__(self, control: Callable[[Any], None], failed: Callable[[], None]) -> None:
        self.channel: Channel
        self.opened: Opened | None = None
        self.span = ShardSpan(0, 0, ())
        self.compression = NOTHING
        self.parameters: SharedVector | None = None
        self.readable: SharedVector | None = None
        """Shared parameters, if the worker may read them without asking."""
        self.vectors: list[SharedVector] = []
        self.answer: Pulled | Loaded | Downloaded | None = None
        self.refusal: str | None = None
        self.reason: str | None = None
        self.broken: str | None = None
        self._control = control
        self._failed = failed
        self._room: Tensor | None = None
        self.pulled_into = 0

    # -- what the channel tells (see `Handler`) ------------------------------------------------------------------------

    def received(self, message: Any) -> None:
        if type(message) not in OF_SHARD:
            self._control(message)
            return
        match message:
            case Opened():
                self._take_memory(message)
            case NewBuffer():
                self.vectors.append(self._next_memory())
                self._expect_fds(False)
            case Pulled() | Loaded() | Downloaded():
                self.answer = message
            case Rejected(reason=reason):
                self.refusal = reason
                self._failed()
            case Broken(reason=reason):
                self.broken = reason
                self._failed()

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if isinstance(message, Downloaded):
            elements = packed_elements(message.state, self.span.elements)
            if elements > 64 * max(self.span.elements, 1):
                raise FrameError(f"the server announced an optimizer state of {elements} numbers")
            self._room = torch.empty(elements)
        if self._room is None or payload != Payload(wire_name(self._room), self._room.numel()):
            raise FrameError(f"the server announced {payload.elements} numbers that were not asked for")
        return as_bytes(self._room)

    def lost(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._failed()

    # -- shared memory -------------------------------------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        return bool(self.vectors)

    def _take_memory(self, message: Opened) -> None:
        self.opened = message
        if message.shared:
            self.vectors.append(self._next_memory())
            self.parameters = self._next_memory(writable=False)
            self.readable = self.parameters if message.direct else None
        self._expect_fds(False)

    def _expect_fds(self, whether: bool) -> None:
        # Descriptors come with few answers only, and looking for them takes longer than a message.
        self.channel.takes_fds = whether

    def _next_memory(self, writable: bool = True) -> SharedVector:
        if not self.channel.fds:
            raise FrameError("the server announced shared memory without handing it over")
        return SharedVector(self.channel.fds.popleft(), self.span.elements, writable)

    def ask_room(self) -> None:
        self._expect_fds(True)
        self.send(MoreRoom())

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, message: Any, numbers: Tensor | None = None) -> None:
        """Send a message and, after it, numbers, which must not change before they are sent."""
        if numbers is None:
            self.channel.send(message)
        else:
            self.channel.send(message, as_bytes(numbers), Payload(wire_name(numbers), numbers.numel()))

    def ask(self, message: Pull | Download | Upload, room: Tensor | None = None, numbers: Tensor | None = None) -> None:
        self.answer, self._room = None, room
        self.send(message, numbers)

    @property
    def room(self) -> Tensor:
        assert self._room is not None
        return self._room

    def take(self, part: Tensor) -> int:
        source = self.vectors[self.pulled_into].values if self.shared else self.room
        if source.data_ptr() != part.data_ptr():
            part.copy_(source)
        assert self.answer is not None
        return self.answer.version
