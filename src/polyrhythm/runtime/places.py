"""One worker's place at a parameter shard: its slots, what they hold, and what it waits for."""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from polyrhythm.runtime.channel import Channel
from polyrhythm.runtime.frames import FrameError, WireDtype
from polyrhythm.runtime.messages import Download, Pull
from polyrhythm.runtime.slots import SharedVector
from polyrhythm.training.compression import Compression

MAX_SLOTS: Final = 64
"""Gradients of one worker that may be held at a time."""
HELD: Final = 0
"""Word of a shared slot that is not zero from the worker's push until the slot is free again."""


@dataclass(slots=True)
class Held:
    """A gradient that has arrived: in which slot, and what its worker had read, if the compensation wants it."""

    slot: int
    backup: Tensor | None


@dataclass(slots=True)
class Place:
    """One worker at this shard."""

    channel: Channel
    compression: Compression
    memories: list[SharedVector] = field(default_factory=list)
    slots: list[Tensor] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    waiting: Pull | Download | None = None
    sending: int | None = None
    backup: Tensor | None = None
    incoming: Tensor | None = None
    incoming_slot: int = 0

    @property
    def wire(self) -> WireDtype:
        """Type of the parameters that it pulls over a network."""
        return self.compression.pulled

    @property
    def shared(self) -> bool:
        """Whether its slots are shared memory."""
        return bool(self.memories)

    def free_slot(self) -> int:
        """A slot that holds nothing; a new one if there is none."""
        busy = {item.slot for item in self.held.values()}
        if self.sending is not None and self.channel.sending:
            busy.add(self.sending)
        if self.incoming is not None:
            busy.add(self.incoming_slot)
        for slot in range(len(self.slots)):
            if slot not in busy:
                return slot
        self.check_room()
        self.slots.append(torch.empty_like(self.slots[0]))
        return len(self.slots) - 1

    def free(self, slot: int) -> None:
        """The slot may be filled again."""
        if self.memories:
            self.memories[slot].words[HELD] = 0

    def check_free(self, slot: int) -> None:
        """The worker has named a slot that it has and that holds nothing."""
        if not 0 <= slot < len(self.slots) or (self.held and any(item.slot == slot for item in self.held.values())):
            raise FrameError(f"{self.channel.peer} named slot {slot}, which is not free")

    def hold(self, number: int, slot: int) -> bool:
        """The gradient of step `number` is in this slot; False if it was dropped before it came."""
        self.check_free(slot)
        if number in self.held:
            raise FrameError(f"{self.channel.peer} pushed step {number} twice")
        if self.void:
            self.void = {other for other in self.void if other >= number}
            if number in self.void:
                self.free(slot)
                return False
        self.held[number] = Held(slot, self.backup)
        return True

    def check_room(self) -> None:
        """A worker cannot fill the server's memory."""
        if len(self.slots) >= MAX_SLOTS:
            raise FrameError(f"{self.channel.peer} has {MAX_SLOTS} gradients that nobody has applied or dropped")

    def remember(self, parameters: Tensor) -> None:
        """Keep what the worker reads now, unless the backup before belongs to a gradient that is still held."""
        if self.backup is None:
            return
        if any(item.backup is self.backup for item in self.held.values()):
            self.backup = parameters.clone()
        else:
            self.backup.copy_(parameters)


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.view(torch.uint8).numpy().data


def wire_name(tensor: Tensor) -> WireDtype:
    """The type of a tensor's numbers as frames name it."""
    names: dict[torch.dtype, WireDtype] = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
        torch.uint8: "uint8",
    }
    return names[tensor.dtype]
