"""What a parameter shard answers to its workers: where each gradient is held, and how parameters get back.

Each worker has one slot of the shard's size. A gradient arrives in it and is held there until it is applied or
dropped; then the slot is free, so that parameters can be copied into it for the worker to fetch, and nobody ever reads
them half written. Only a worker that pushes again while its gradient is held gets a second slot.

On one host a slot is shared memory and the messages only say that it is filled; there a worker usually reads the
parameters themselves, and asks for a copy only if an update came in between. Elsewhere the slot is received into and
sent from.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.channel import Channel
from polyrhythm.runtime.frames import FrameError, Payload
from polyrhythm.runtime.messages import (
    Apply,
    Download,
    Downloaded,
    Drop,
    Layout,
    Loaded,
    MoreRoom,
    Open,
    Opened,
    OptimizerSpec,
    Pull,
    Pulled,
    Push,
    Rejected,
    Slot,
    Upload,
)
from polyrhythm.runtime.places import Place, as_bytes, wire_name
from polyrhythm.runtime.segments import pack_state, packed_elements, unpack_state
from polyrhythm.runtime.shard import ParameterShard
from polyrhythm.runtime.slots import SharedVector
from polyrhythm.training.codecs import decode
from polyrhythm.training.compensation import Compensation, parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.server import Push as HeldGradient


class ShardService:
    """A shard and its workers.

    Args:
        index: which shard of `count` this is.
        count: shards of the job.
        arrived: called with worker and step number when a gradient is held here.
        compensation: spec of what is done about staleness.
        allowed: see `ParameterShard`.

    Worker channels hand their messages (`ToShard`) to `received` and `place`. The hub calls `apply`, `drop` and
    `forget`.
    """

    def __init__(
        self,
        index: int,
        count: int,
        arrived: Callable[[int, int], None],
        compensation: str = "none",
        allowed: Collection[str] = (),
    ) -> None:
        self.shard: ParameterShard | None = None
        self._index = index
        self._count = count
        self._arrived = arrived
        self._compensation: Compensation = parse_compensation(compensation)
        self._allowed = allowed
        self._layout: Layout | None = None
        self._optimizer: OptimizerSpec | None = None
        self.places: dict[int, Place] = {}

    @property
    def message_bytes(self) -> int:
        """Size of all gradients or parameters of the model as float32; 0 before a worker has opened."""
        return self._layout.elements * 4 if self._layout is not None else 0

    # -- from a worker -------------------------------------------------------------------------------------------------

    def received(self, worker: int, channel: Channel, message: Any) -> None:
        """A worker's message, its payload in place."""
        if isinstance(message, Open):
            self._open(worker, channel, message)
            return
        place = self._place_of(worker)
        match message:
            case Push():
                self._push(worker, place, message)
            case Pull() | Download():
                self._wait(place, message)
            case MoreRoom():
                self._add_slot(place)
            case Upload():
                self._upload(place, message)
            case _:
                raise FrameError(f"rank {worker} sent {type(message).__name__} to a parameter shard")

    def place(self, worker: int, message: Any, payload: Payload) -> memoryview:
        """Where the payload of a worker's message goes; refused unless it is exactly what is expected."""
        place = self._place_of(worker)
        if isinstance(message, Push) and not place.shared:
            place.incoming = self._room_for_gradient(place)
        elif isinstance(message, Upload):
            place.incoming = self._room_for_upload(message)
        else:
            raise FrameError(f"rank {worker} sent numbers with a {type(message).__name__}, which has none")
        expected = Payload(wire_name(place.incoming), place.incoming.numel())
        if payload != expected:
            raise FrameError(
                f"rank {worker} announced {payload.elements} numbers of {payload.dtype} but the shard expects "
                f"{expected.elements} of {expected.dtype}"
            )
        return as_bytes(place.incoming)

    def lost(self, worker: int, channel: Channel) -> None:
        """A worker's connection has ended; what it has pushed stays until the hub decides."""
        place = self.places.get(worker)
        if place is not None and place.channel is channel:
            place.waiting = None

    # -- from the hub --------------------------------------------------------------------------------------------------

    def apply(self, message: Apply) -> None:
        """Make one step, free the slots of its gradients and answer those who waited for it."""
        assert self.shard is not None, "an update needs a model"
        pushes, freed = [], []
        for contribution in message.contributions:
            place = self._place_of(contribution.worker)
            assert contribution.number in place.held, f"gradient {contribution} is not here"
            item = place.held.pop(contribution.number)
            gradient = place.slots[item.slot]
            pushes.append(HeldGradient(gradient, item.backup, contribution.staleness, contribution.weight))
            freed.append((place, item.slot))
        self.shard.apply(pushes, message.lr_scale, message.settings)
        for place, slot in freed:
            place.free(slot)
        for place in self.places.values():
            if place.waiting is not None:
                self._answer(place)

    def drop(self, message: Drop) -> None:
        """Forget gradients, also those that are still to come."""
        for worker, number in message.gradients:
            place = self.places.get(worker)
            if place is None:
                continue
            item = place.held.pop(number, None)
            if item is None:
                place.void.add(number)
            else:
                place.free(item.slot)

    def forget(self, worker: int) -> None:
        """A worker is gone, with all that it has here."""
        self.places.pop(worker, None)

    # -- details -------------------------------------------------------------------------------------------------------

    def _open(self, worker: int, channel: Channel, message: Open) -> None:
        try:
            self._build_or_compare(worker, message)
        except PolyrhythmError as error:
            channel.send(Rejected(str(error)))
            raise
        assert self.shard is not None
        place = self.places[worker] = Place(channel, parse_compression(message.compress))
        memory = self.shard.memory
        if self._compensation.needs_backup:
            place.backup = self.shard.vector.clone()
        if memory is None or not channel.local:
            place.slots.append(torch.empty_like(self.shard.vector))
            channel.send(Opened(self._index, self._count, self.shard.version, shared=False))
            return
        slot = self._new_memory(place)
        direct = not self._compensation.needs_backup  # otherwise the shard must know what its workers read
        channel.send(
            Opened(self._index, self._count, self.shard.version, shared=True, direct=direct), fds=(slot.fd, memory.fd)
        )

    def _build_or_compare(self, worker: int, message: Open) -> None:
        """The first worker's model is the job's; all others must have the same."""
        if self._layout is None or self._optimizer is None:
            self.shard = ParameterShard(
                message.layout, self._index, self._count, message.optimizer, self._compensation, self._allowed
            )
            self._layout, self._optimizer = message.layout, message.optimizer
        elif difference := message.layout.difference(self._layout):
            raise PolyrhythmError(
                f"the model of rank {worker} ('here') differs from that of the first worker ('there'): {difference}; "
                "start the same model on every rank"
            )
        elif message.optimizer.kind != self._optimizer.kind:
            raise PolyrhythmError(
                f"rank {worker} uses the optimizer {message.optimizer.kind}, the first worker "
                f"{self._optimizer.kind}; use the same on every rank"
            )

    def _place_of(self, worker: int) -> Place:
        place = self.places.get(worker)
        if place is None:
            raise FrameError(f"rank {worker} did not open the shard before it used it")
        return place

    def _push(self, worker: int, place: Place, message: Push) -> None:
        slot = message.slot if place.shared else self._received_slot(worker, place)
        if place.hold(message.number, slot):
            self._arrived(worker, message.number)

    def _received_slot(self, worker: int, place: Place) -> int:
        """The slot that the gradient is in, as float32."""
        if place.incoming is None:
            raise FrameError(f"rank {worker} pushed without a gradient")
        slot = place.slots[place.incoming_slot]
        if place.incoming is not slot:
            try:
                slot.copy_(decode(place.compression, place.incoming, slot.numel()))
            except PolyrhythmError as error:
                raise FrameError(f"rank {worker} pushed what is no gradient: {error}") from None
        place.incoming = None
        return place.incoming_slot

    def _room_for_gradient(self, place: Place) -> Tensor:
        place.incoming_slot = place.free_slot()
        slot = place.slots[place.incoming_slot]
        if place.compression.kind == "none":
            return slot
        return torch.empty(place.compression.size(slot.numel()), dtype=torch.uint8)

    def _room_for_upload(self, message: Upload) -> Tensor:
        assert self.shard is not None
        self.shard.check_state(message.state)
        return torch.empty(packed_elements(message.state, self.shard.span.elements))

    def _add_slot(self, place: Place) -> None:
        if not place.shared:
            raise FrameError(f"{place.channel.peer} asked for shared memory over a network")
        place.check_room()
        memory = self._new_memory(place)
        place.channel.send(Slot(len(place.slots) - 1), fds=(memory.fd,))

    def _new_memory(self, place: Place) -> SharedVector:
        assert self.shard is not None
        memory = SharedVector.create(self.shard.span.elements)
        place.memories.append(memory)
        place.slots.append(memory.values)
        return memory

    def _wait(self, place: Place, message: Pull | Download) -> None:
        if isinstance(message, Pull) and place.shared:
            place.check_free(message.slot)
        place.waiting = message
        self._answer(place)

    def _answer(self, place: Place) -> None:
        """Send what a worker waits for, if it is there."""
        assert self.shard is not None
        waiting = place.waiting
        if waiting is None or waiting.version > self.shard.version:
            return
        place.waiting = None
        if isinstance(waiting, Download):
            self._send_state(place)
        elif place.shared:
            self._copy_to_slot(place, waiting.slot)
        else:
            self._send_parameters(place)

    def _copy_to_slot(self, place: Place, slot: int) -> None:
        assert self.shard is not None
        place.remember(self.shard.vector)
        place.slots[slot].copy_(self.shard.vector)
        place.channel.send(Pulled(self.shard.version))

    def _send_parameters(self, place: Place) -> None:
        assert self.shard is not None
        place.remember(self.shard.vector)
        place.sending = place.free_slot()
        slot = place.slots[place.sending]
        numbers = slot if place.wire == "float32" else slot.view(getattr(torch, place.wire))[: slot.numel()]
        numbers.copy_(self.shard.vector)
        place.channel.send(Pulled(self.shard.version), as_bytes(numbers), Payload(place.wire, numbers.numel()))

    def _send_state(self, place: Place) -> None:
        assert self.shard is not None
        shape, packed = pack_state(self.shard.vector, self.shard.state())
        place.channel.send(Downloaded(self.shard.version, shape), as_bytes(packed), Payload("float32", packed.numel()))

    def _upload(self, place: Place, message: Upload) -> None:
        assert self.shard is not None
        if place.incoming is None:
            raise FrameError(f"{place.channel.peer} sent an upload without numbers")
        parameters, state = unpack_state(message.state, place.incoming, self.shard.span.elements)
        self.shard.load(parameters, state, message.version)
        place.incoming = None
        for other in self.places.values():
            other.remember(self.shard.vector)
        place.channel.send(Loaded(message.version))
