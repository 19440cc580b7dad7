"""What a parameter shard answers to its workers: where each gradient is held, and how parameters get back.

Each worker has one buffer of the shard's size. A gradient arrives in it and is held there until it is applied or
dropped; then the buffer is free, so that parameters can be copied into it for the worker to fetch, and nobody ever
reads them half written. Only a worker that pushes again while its gradient is held gets a second buffer.

On one host a buffer is shared memory and the messages only say that it is filled; there a worker usually reads the
parameters themselves, and asks for a copy only if an update came in between. Elsewhere the buffer is received into and
sent from.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import FrameError, PolyrhythmError, UsageError
from polyrhythm.runtime.server.shard import ParameterShard
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.segments import pack_state, packed_elements, shape_of, unpack_state
from polyrhythm.runtime.wire.shard_protocol import (
    Apply,
    Download,
    Downloaded,
    Drop,
    GroupSettings,
    Layout,
    Loaded,
    MoreRoom,
    NewBuffer,
    Open,
    Opened,
    OptimizerSpec,
    Pull,
    Pulled,
    PushGradient,
    Rejected,
    StateShape,
    Upload,
)
from polyrhythm.runtime.wire.shared_memory import SharedVector
from polyrhythm.runtime.wire.worker_buffers import HELD, WorkerBuffers, as_bytes, wire_name
from polyrhythm.training.codecs import decode
from polyrhythm.training.compensation import Compensation, parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.server import Push as HeldGradient


class ShardService:
    """A shard and its workers.

    Args:
        index: which shard of `count` this is.
        count: shards of the job.
        arrived: called with worker and step number when a `PushGradient` is held here.
        compensation: spec of what is done about staleness.
        allowed: see `ParameterShard`.

    Worker channels hand their messages (`ToShard`) to `received` and `destination`. The coordinator calls `pushed`,
    `apply`, `drop` and `forget`.
    """

    def __init__(
        self,
        index: int,
        count: int,
        arrived: Callable[[int, int], None] | None,
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
        self._checked: GroupSettings = ()
        self.all_buffers: dict[int, WorkerBuffers] = {}
        self._restored: tuple[StateShape, Tensor, int] | None = None

    def restore(self, shape: StateShape, numbers: bytearray, version: int) -> None:
        """Go on from what a shard before this one had; `numbers` are as of `pack_state`."""
        self._restored = shape, torch.frombuffer(numbers, dtype=torch.float32), version

    def state(self) -> tuple[StateShape, list[memoryview]]:
        """What `restore` takes, in parts; the first are the parameters themselves, which change with the next step."""
        assert self.shard is not None, "there is a model"
        state = self.shard.state()
        vectors = (vector.values for vector in state.vectors.values())
        return shape_of(state), [as_bytes(self.shard.vector), *map(as_bytes, vectors)]

    @property
    def message_bytes(self) -> int:
        """Size of all gradients or parameters of the model as float32; 0 before a worker has opened."""
        return self._layout.elements * 4 if self._layout is not None else 0

    # -- from a worker -------------------------------------------------------------------------------------------------

    def received(self, worker: int, channel: Channel, message: Any) -> None:
        if isinstance(message, Open):
            self._open(worker, channel, message)
            return
        buffers = self._buffers_of(worker)
        match message:
            case PushGradient():
                self._push(worker, buffers, message)
            case Pull() | Download():
                self._wait(buffers, message)
            case MoreRoom():
                self._add_buffer(buffers)
            case Upload():
                self._upload(buffers, message)
            case _:
                raise FrameError(f"rank {worker} sent {type(message).__name__} to a parameter shard")

    def pushed(self, worker: int, number: int, buffer: int | None, settings: GroupSettings) -> bool:
        """Whether the gradient of step `number` is held here: it lies in a buffer, or has come before.

        Of its hyper-parameters there is most of the time nothing new.
        """
        if settings and settings != self._checked and self.shard is not None:
            self.shard.check_settings(settings, f"rank {worker}")
            self._checked = settings
        buffers = self.all_buffers.get(worker) or self._buffers_of(worker)
        if buffer is None:
            return number in buffers.held
        if not buffers.shared:
            raise FrameError(f"rank {worker} named buffer {buffer}, but shares none")
        return buffers.hold(number, buffer)

    def destination(self, worker: int, message: Any, payload: Payload) -> memoryview:
        """Where the payload of a worker's message goes; refused unless it is exactly what is expected."""
        buffers = self._buffers_of(worker)
        if isinstance(message, PushGradient) and not buffers.shared:
            buffers.incoming = self._room_for_gradient(buffers)
        elif isinstance(message, Upload):
            buffers.incoming = self._room_for_upload(message)
        else:
            raise FrameError(f"rank {worker} sent numbers with a {type(message).__name__}, which has none")
        expected = Payload(wire_name(buffers.incoming), buffers.incoming.numel())
        if payload != expected:
            raise FrameError(
                f"rank {worker} announced {payload.elements} numbers of {payload.dtype} but the shard expects "
                f"{expected.elements} of {expected.dtype}"
            )
        return as_bytes(buffers.incoming)

    def lost(self, worker: int, channel: Channel) -> None:
        """A worker's connection has ended; what it has pushed stays until the coordinator decides."""
        buffers = self.all_buffers.get(worker)
        if buffers is not None and buffers.channel is channel:
            buffers.waiting = None

    # -- from the coordinator ------------------------------------------------------------------------------------------

    def apply(self, message: Apply) -> None:
        """Make one step, free the slots of its gradients and answer those who waited for it."""
        assert self.shard is not None, "an update needs a model"
        pushes, freed = [], []
        for contribution in message.contributions:
            buffers = self.all_buffers[contribution.worker]
            assert contribution.number in buffers.held, f"gradient {contribution} is not here"
            item = buffers.held.pop(contribution.number)
            gradient = buffers.vectors[item.buffer]
            pushes.append(HeldGradient(gradient, item.backup, contribution.staleness, contribution.weight))
            freed.append((buffers, item.buffer))
        self.shard.apply(pushes, message.lr_scale, message.settings)
        for buffers, buffer in freed:
            if buffers.memories:
                buffers.memories[buffer].words[HELD] = 0
        self._answer_all()

    def drop(self, message: Drop) -> None:
        """Forget gradients, also those that are still to come."""
        for worker, number in message.gradients:
            buffers = self.all_buffers.get(worker)
            if buffers is None:
                continue
            item = buffers.held.pop(number, None)
            if item is None:
                buffers.void.add(number)
            else:
                buffers.free(item.buffer)

    def forget(self, worker: int) -> None:
        self.all_buffers.pop(worker, None)

    # -- details -------------------------------------------------------------------------------------------------------

    def _open(self, worker: int, channel: Channel, message: Open) -> None:
        if worker in self.all_buffers:
            raise FrameError(f"rank {worker} opened the shard twice")
        try:
            compression = parse_compression(message.compress)
            self._build_or_compare(worker, message)
        except PolyrhythmError as error:
            channel.send(Rejected(str(error)))
            raise
        assert self.shard is not None
        buffers = self.all_buffers[worker] = WorkerBuffers(channel, compression)
        memory = self.shard.memory
        if self._compensation.needs_backup:
            buffers.backup = self.shard.vector.clone()
        if memory is None or not channel.local:
            buffers.vectors.append(torch.empty_like(self.shard.vector))
            channel.send(Opened(self._index, self._count, self.shard.version, shared=False))
            return
        buffer = self._new_memory(buffers)
        direct = not self._compensation.needs_backup  # otherwise the shard must know what its workers read
        channel.send(
            Opened(self._index, self._count, self.shard.version, shared=True, direct=direct), fds=(buffer.fd, memory.fd)
        )

    def _build_or_compare(self, worker: int, message: Open) -> None:
        if self._layout is None or self._optimizer is None:
            self.shard = self._build(worker, message)
            self._layout, self._optimizer = message.layout, message.optimizer
            self._load_restored(self.shard)
        elif difference := message.layout.difference(self._layout):
            raise UsageError(
                f"the model of rank {worker} ('here') differs from that of the first worker ('there'): {difference}; "
                "start the same model on every rank"
            )
        elif message.optimizer.kind != self._optimizer.kind:
            raise UsageError(
                f"rank {worker} uses the optimizer {message.optimizer.kind}, the first worker "
                f"{self._optimizer.kind}; use the same on every rank"
            )

    def _load_restored(self, shard: ParameterShard) -> None:
        if self._restored is None:
            return
        (shape, numbers, version), self._restored = self._restored, None
        shard.check_state(shape)
        if packed_elements(shape, shard.span.elements) != numbers.numel():
            raise UsageError("the model is another one than that of the coordinator that has died")
        parameters, state = unpack_state(shape, numbers, shard.span.elements)
        shard.load(parameters, state, version)

    def _build(self, worker: int, message: Open) -> ParameterShard:
        try:
            return ParameterShard(
                message.layout, self._index, self._count, message.optimizer, self._compensation, self._allowed
            )
        except PolyrhythmError:
            raise
        except Exception as error:  # of torch, for a size or an option that cannot be
            raise UsageError(f"rank {worker} has a model or an optimizer that cannot be built: {error!r}") from error

    def _buffers_of(self, worker: int) -> WorkerBuffers:
        buffers = self.all_buffers.get(worker)
        if buffers is None:
            raise FrameError(f"rank {worker} did not open the shard before it used it")
        return buffers

    def _push(self, worker: int, buffers: WorkerBuffers, message: PushGradient) -> None:
        buffer = message.buffer if buffers.shared else self._received_buffer(worker, buffers)
        if buffers.hold(message.number, buffer) and self._arrived is not None:
            self._arrived(worker, message.number)

    def _received_buffer(self, worker: int, buffers: WorkerBuffers) -> int:
        if buffers.incoming is None:
            raise FrameError(f"rank {worker} pushed without a gradient")
        buffer = buffers.vectors[buffers.incoming_buffer]
        if buffers.incoming is not buffer:
            try:
                buffer.copy_(decode(buffers.compression, buffers.incoming, buffer.numel()))
            except PolyrhythmError as error:
                raise FrameError(f"rank {worker} pushed what is no gradient: {error}") from None
        buffers.incoming = None
        return buffers.incoming_buffer

    def _room_for_gradient(self, buffers: WorkerBuffers) -> Tensor:
        buffers.incoming_buffer = buffers.free_buffer()
        buffer = buffers.vectors[buffers.incoming_buffer]
        if buffers.compression.kind == "none":
            return buffer
        return torch.empty(buffers.compression.size(buffer.numel()), dtype=torch.uint8)

    def _room_for_upload(self, message: Upload) -> Tensor:
        assert self.shard is not None
        self.shard.check_state(message.state)
        return torch.empty(packed_elements(message.state, self.shard.span.elements))

    def _add_buffer(self, buffers: WorkerBuffers) -> None:
        if not buffers.shared:
            raise FrameError(f"{buffers.channel.peer} asked for shared memory over a network")
        buffers.check_room()
        memory = self._new_memory(buffers)
        buffers.channel.send(NewBuffer(len(buffers.vectors) - 1), fds=(memory.fd,))

    def _new_memory(self, buffers: WorkerBuffers) -> SharedVector:
        assert self.shard is not None
        memory = SharedVector.create(self.shard.span.elements)
        buffers.memories.append(memory)
        buffers.vectors.append(memory.values)
        return memory

    def _wait(self, buffers: WorkerBuffers, message: Pull | Download) -> None:
        if isinstance(message, Pull) and buffers.shared:
            buffers.check_free(message.buffer)
        buffers.waiting = message
        self._answer(buffers)

    def _answer_all(self) -> None:
        for buffers in self.all_buffers.values():
            if buffers.waiting is not None:
                self._answer(buffers)

    def _answer(self, buffers: WorkerBuffers) -> None:
        assert self.shard is not None
        waiting = buffers.waiting
        if waiting is None or waiting.version > self.shard.version:
            return
        buffers.waiting = None
        if isinstance(waiting, Download):
            self._send_state(buffers)
        elif buffers.shared:
            self._copy_to_buffer(buffers, waiting.buffer)
        else:
            self._send_parameters(buffers)

    def _copy_to_buffer(self, buffers: WorkerBuffers, buffer: int) -> None:
        assert self.shard is not None
        buffers.remember(self.shard.vector)
        buffers.vectors[buffer].copy_(self.shard.vector)
        buffers.channel.send(Pulled(self.shard.version))

    def _send_parameters(self, buffers: WorkerBuffers) -> None:
        assert self.shard is not None
        buffers.remember(self.shard.vector)
        buffers.sending = buffers.free_buffer()
        buffer = buffers.vectors[buffers.sending]
        numbers = buffer if buffers.wire == "float32" else buffer.view(getattr(torch, buffers.wire))[: buffer.numel()]
        numbers.copy_(self.shard.vector)
        buffers.channel.send(Pulled(self.shard.version), as_bytes(numbers), Payload(buffers.wire, numbers.numel()))

    def _send_state(self, buffers: WorkerBuffers) -> None:
        assert self.shard is not None
        shape, packed = pack_state(self.shard.vector, self.shard.state())
        buffers.channel.send(
            Downloaded(self.shard.version, shape), as_bytes(packed), Payload("float32", packed.numel())
        )

    def _upload(self, buffers: WorkerBuffers, message: Upload) -> None:
        assert self.shard is not None
        if buffers.incoming is None:
            raise FrameError(f"{buffers.channel.peer} sent an upload without numbers")
        parameters, state = unpack_state(message.state, buffers.incoming, self.shard.span.elements)
        self.shard.load(parameters, state, message.version)
        buffers.incoming = None
        for other in self.all_buffers.values():
            other.remember(self.shard.vector)
        buffers.channel.send(Loaded(message.version))
        self._answer_all()
