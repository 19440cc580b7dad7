"""One worker's place at a parameter shard: its slots, what they hold, and what it waits for."""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from polyrhythm.errors import FrameError
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import WireDtype
from polyrhythm.runtime.wire.shard_protocol import Download, Pull
from polyrhythm.runtime.wire.shared_memory import SharedVector
from polyrhythm.training.compression import Compression

MAX_BUFFERS: Final = 64
"""Gradients of one worker that may be held at a time."""
HELD: Final = 0
"""Word of a shared buffer that is not zero from the worker's push until the buffer is free again."""


@dataclass(slots=True)
class Held:
    """A gradient that has arrived: in which buffer, and what its worker had read, if the compensation wants it."""

    buffer: int
    backup: Tensor | None


@dataclass(slots=True)
class WorkerBuffers:
    channel: Channel
    compression: Compression
    memories: list[SharedVector] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    waiting: Pull | Download | None = None
    sending: int | None = None
    backup: Tensor | None = None
    incoming: Tensor | None = None
    incoming_buffer: int = 0

    @property
    def wire(self) -> WireDtype:
        """Type of the parameters that it pulls over a network."""
        return self.compression.pulled

    @property
    def shared(self) -> bool:
        return bool(self.memories)

    def free_buffer(self) -> int:
        busy = {item.buffer for item in self.held.values()}
        if self.sending is not None and self.channel.sending:
            busy.add(self.sending)
        if self.incoming is not None:
            busy.add(self.incoming_buffer)
        for buffer in range(len(self.vectors)):
            if buffer not in busy:
                return buffer
        self.check_room()
        self.vectors.append(torch.empty_like(self.vectors[0]))
        return len(self.vectors) - 1

    def free(self, buffer: int) -> None:
        if self.memories:
            self.memories[buffer].words[HELD] = 0

    def check_free(self, buffer: int) -> None:
        if not 0 <= buffer < len(self.vectors) or (
            self.held and any(item.buffer == buffer for item in self.held.values())
        ):
            raise FrameError(f"{self.channel.peer} named buffer {buffer}, which is not free")

    def hold(self, number: int, buffer: int) -> bool:
        """The gradient of step `number` is in this buffer; False if it was dropped before it came."""
        self.check_free(buffer)
        if number in self.held:
            raise FrameError(f"{self.channel.peer} pushed step {number} twice")
        if self.void:
            self.void = {other for other in self.void if other >= number}
            if number in self.void:
                self.free(buffer)
                return False
        self.held[number] = Held(buffer, self.backup)
        return True

    def check_room(self) -> None:
        # A worker cannot fill the server's memory.
        if len(self.vectors) >= MAX_BUFFERS:
            raise FrameError(f"{self.channel.peer} has {MAX_BUFFERS} gradients that nobody has applied or dropped")

    def remember(self, parameters: Tensor) -> None:
        """Keep what the worker reads now, unless the backup before belongs to a gradient that is still held."""
        if self.backup is None:
            return
        if any(item.backup is self.backup for item in self.held.values()):
            self.backup = parameters.clone()
        else:
            self.backup.copy_(parameters)


def as_bytes(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


def wire_name(tensor: Tensor) -> WireDtype:
    names: dict[torch.dtype, WireDtype] = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
        torch.uint8: "uint8",
    }
    return names[tensor.dtype]
