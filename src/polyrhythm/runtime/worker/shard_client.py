"""A worker's side of the parameter shards: push a gradient, pull parameters, move state at a switch.

The same calls over shared memory and over TCP, from one thread. What else comes from the coordinator on the first
connection is handed on.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from polyrhythm.errors import BrokenPolicyError, CoordinatorLostError, JobError, ServerLostError, UsageError
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.segments import (
    ShardSpan,
    cut_spans,
    group_sizes,
    join_states,
    pack_state,
    slice_state,
    unpack_state,
)
from polyrhythm.runtime.wire.shard_protocol import (
    Download,
    Downloaded,
    Hello,
    Layout,
    Open,
    OptimizerSpec,
    Pull,
    PushGradient,
    Upload,
)
from polyrhythm.runtime.wire.shared_memory import SharedVector, hand_untorn, read_untorn
from polyrhythm.runtime.wire.worker_buffers import HELD
from polyrhythm.runtime.worker.shard_connection import Port
from polyrhythm.training.codecs import Compressor, decode
from polyrhythm.training.compression import NOTHING, Compression, PullType
from polyrhythm.training.optimizer import OptimizerState


class ShardClient:
    """Pushes to and pulls from all shards of a job.

    Args:
        loop: serves the connections; nothing is received while it is not stepped.
        rank: of this worker, for error messages.
        control: called with every message that is not for the data plane.
        timeout_s: how long a server may take to answer.

    Attributes:
        broken: whether a server has refused this worker or is gone.
        recovers: whether another coordinator follows one that dies.

    Every call raises `ServerLostError` when a server has gone or is silent for too long.
    """

    def __init__(self, loop: Loop, rank: int, control: Callable[[Any], None], timeout_s: float = 60.0) -> None:
        self.loop = loop
        self.rank = rank
        self.version = 0
        self._control = control
        self._timeout_s = timeout_s
        self._ports: list[Port] = []
        self._spans: tuple[ShardSpan, ...] = ()
        self._sizes: tuple[int, ...] = ()
        self._compressor: Compressor | None = None
        self._direct: Port | None = None
        self.broken = self.recovers = False

    def connect(self, address: str, hello: Hello, decoder: "msgspec.msgpack.Decoder[Any]", token: str = "") -> Channel:
        """Connect to the next shard; the first is the one beside the coordinator.

        Raises:
            UnreachableError, UsageError: see `join`.
        """
        port = Port(self._control, self._note_failure)
        port.channel = join(self.loop, address, hello, decoder, port, self._timeout_s, token=token)
        self._ports.append(port)
        return port.channel

    def open(self, layout: Layout, optimizer: OptimizerSpec, compression: Compression = NOTHING) -> None:
        """Describe the model to every shard; the first worker's description is the job's.

        Gradients arrive as compressed through shared memory too, where that saves nothing.

        Raises:
            UsageError: if the model or the optimizer differs from that of the other workers.
        """
        self._sizes = group_sizes(layout)
        self._spans = cut_spans(self._sizes, len(self._ports))
        for port, span in zip(self._ports, self._spans, strict=True):
            port.span, port.compression = span, compression
            port.send(Open(layout, optimizer, compression.spec))
        self._compressor = Compressor.of(compression, 0, self.rank)
        self.wait(lambda: all(port.opened for port in self._ports), "while it opened the shards")
        for number, port in enumerate(self._ports):
            assert port.opened is not None
            if (port.opened.index, port.opened.count) != (number, len(self._ports)):
                raise UsageError(
                    f"shard {number} of {len(self._ports)} calls itself {port.opened.index} of {port.opened.count}; "
                    "give every worker the same addresses"
                )
        if len(self._ports) == 1 and self._ports[0].shared and self._compressor is None:
            self._direct = self._ports[0]

    def gradient_buffer(self) -> Tensor | None:
        """Shared memory of the model's length for the next gradient, if there is one shard on this host.

        What is written there needs no copy at the push. Valid from a pull to the push after it.
        """
        if len(self._ports) != 1 or not self._ports[0].shared:
            return None
        return self._buffer(self._ports[0])[1].values

    def push(self, number: int, gradient: Tensor) -> None:
        """Send the gradient of step `number`; it may be changed when this returns.

        Args:
            number: of the step; never used again by this worker.
            gradient: flat, float32, of the model's length, on any device.
        """
        self._push_parts(number, gradient)
        if self.broken or not self._all_sent():
            self.wait(self._all_sent, f"while step {number} was pushed")

    def pull(self, out: Tensor, version: int = 0) -> int:
        """Copy parameters of at least `version` into `out`; the version read, the oldest of all shards.

        Args:
            out: flat, float32, of the model's length, on any device.
            version: wait until every shard has it.
        """
        parts = self._parts(out)
        versions = [self._read(port, part, version) for port, part in zip(self._ports, parts, strict=True)]
        asked = [(port, part) for port, part, read in zip(self._ports, parts, versions, strict=True) if read is None]
        for port, part in asked:
            self._ask_parameters(port, part, version)
        self.wait(lambda: all(port.answer for port, _ in asked), f"while version {version} was pulled")
        self.version = min([v for v in versions if v is not None] + [port.take(part) for port, part in asked])
        return self.version

    def put(self, number: int, gather: Callable[[Tensor], object]) -> int | None:
        """Have `gather` write the gradient of step `number` where it is shared with one shard, which saves a copy.

        Returns:
            the buffer that holds it, which the `Pushed` of the step names; None if that did not work: push.
        """
        if self._direct is None:
            return None
        index, buffer = self._buffer(self._direct)
        gather(buffer.values)
        buffer.words[HELD] = 1
        if self.broken:
            self._raise_failure(f"while step {number} was pushed", self._timeout_s)
        return index

    def hand(self, take: Callable[[Tensor], object], version: int = 0) -> bool:
        """Give `take` parameters of at least `version` where they are shared with one shard, which saves a copy.

        Returns:
            whether that worked; if not, pull, because `take` may have seen parts of several versions.
        """
        port = self._direct
        if port is None or (memory := port.readable) is None:
            return False
        version_read = hand_untorn(memory, take, version)
        if version_read is None:
            return False
        self.version = version_read
        return True

    def swap(self, number: int, gradient: Tensor, out: Tensor) -> int:
        """Push, and pull at the same time: a network's two directions are both busy then, and it takes half as long.

        Args:
            number: as in `push`.
            gradient: as in `push`.
            out: as in `pull`; what comes there is without this gradient, because it was sent when the push began.

        Returns:
            the version that was read.
        """
        asked = list(zip(self._ports, self._parts(out), strict=True))
        for port, part in asked:
            self._ask_parameters(port, part, 0)
        self._push_parts(number, gradient)
        done = f"while step {number} was pushed and parameters were pulled"
        self.wait(lambda: self._all_sent() and all(port.answer for port in self._ports), done)
        self.version = min(port.take(part) for port, part in asked)
        return self.version

    def upload(self, parameters: Tensor, state: OptimizerState, version: int) -> None:
        """Make these the parameters and the optimizer's state of the job, under this version.

        Args:
            parameters: flat, of the model's length.
            state: as `FlatOptimizer.state` gives it: for elementwise optimizers, one piece for each parameter group.
            version: at least that of the shards.
        """
        kept = []
        for port, span in zip(self._ports, self._spans, strict=True):
            part = parameters[span.start : span.stop].cpu()
            shape, packed = pack_state(part, slice_state(state, self._sizes, span))
            kept.append(packed)  # until it is sent
            port.ask(Upload(version, shape), numbers=packed)
        self.wait(lambda: all(port.answer for port in self._ports), "while its state went to the servers")

    def download(self, version: int = 0) -> tuple[Tensor, OptimizerState, int]:
        """Parameters of at least `version`, the optimizer's state (see `upload`) and the version read."""
        for port in self._ports:
            port.ask(Download(version))
        self.wait(lambda: all(port.answer for port in self._ports), "while the servers' state was fetched")
        parameters, states, versions = [], [], []
        for port in self._ports:
            assert isinstance(port.answer, Downloaded)
            part, state = unpack_state(port.answer.state, port.room, port.span.elements)
            parameters.append(part)
            states.append(state)
            versions.append(port.answer.version)
        return torch.cat(parameters), join_states(states, self._spans), min(versions)

    def wait(self, done: Callable[[], object], phase: str, timeout_s: float | None = None) -> None:
        """Step the loop until `done`.

        Raises:
            UsageError, JobError: the reason, if a server has rejected this worker, at first or later.
            BrokenPolicyError: if the job ends because of its policy.
            ServerLostError: if a server has gone or the timeout is over.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        deadline = self.loop.clock() + limit
        while not (self.broken or done()):
            left = deadline - self.loop.clock()
            if left <= 0:
                break
            self.loop.step(left)
        else:
            if not self.broken:
                return
        self._raise_failure(phase, limit)

    def _raise_failure(self, phase: str, limit: float) -> None:
        for number, port in enumerate(self._ports):
            if port.broken is not None:
                raise BrokenPolicyError(port.broken)
            if port.refusal is not None:
                # Once it is open, nothing that this worker gave is at fault: the job has ended, or goes on without it.
                kind = UsageError if port.opened is None else JobError
                refused = kind(f"server {number} refused rank {self.rank} {phase}: {port.refusal}")
                refused.reason = port.refusal
                raise refused
            if port.reason is not None:
                lost = CoordinatorLostError if self.recovers else ServerLostError
                raise lost(
                    f"rank {self.rank} lost server {number} {phase}: {port.reason}; see the server's log, and start "
                    "the job again from its last checkpoint"
                )
        raise ServerLostError(
            f"rank {self.rank} got no answer within {limit:g} s {phase}; a server hangs or is overloaded"
        )

    @property
    def lost(self) -> bool:
        """Whether the coordinator has died and another one follows."""
        if not (self.broken and self.recovers):
            return False
        return not any(port.broken is not None or port.refusal is not None for port in self._ports)

    @property
    def shared(self) -> bool:
        return any(port.shared for port in self._ports)

    @property
    def channels(self) -> list[Channel]:
        return [port.channel for port in self._ports]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()

    # -- details -------------------------------------------------------------------------------------------------------

    def _note_failure(self) -> None:
        self.broken = True

    def _all_sent(self) -> bool:
        for port in self._ports:  # noqa: SIM110 - a generator takes several times as long
            if port.channel.sending:
                return False
        return True

    def _buffer(self, port: Port) -> tuple[int, SharedVector]:
        for number, buffer in enumerate(port.vectors):
            if not buffer.words[HELD]:
                return number, buffer
        before = len(port.vectors)
        port.ask_room()
        self.wait(lambda: len(port.vectors) > before, "while it asked for another buffer")
        return before, port.vectors[before]

    def _parts(self, flat: Tensor) -> list[Tensor]:
        return [flat] if len(self._spans) == 1 else [flat[span.start : span.stop] for span in self._spans]

    def _push_parts(self, number: int, gradient: Tensor) -> None:
        for port, part in zip(self._ports, self._parts(gradient), strict=True):
            self._push(port, number, part, port.span.start)

    def _push(self, port: Port, number: int, part: Tensor, start: int) -> None:
        payload = self._compressor.encode(part, start) if self._compressor else None
        if not port.shared:
            port.send(PushGradient(number), part.cpu() if payload is None else payload)
            return
        index, buffer = self._buffer(port)
        buffer.fill(part if payload is None else decode(port.compression, payload, len(part)))
        buffer.words[HELD] = 1
        port.send(PushGradient(number, index))

    def _read(self, port: Port, part: Tensor, version: int) -> int | None:
        """Read shared parameters directly; None if that did not work and the shard must be asked."""
        memory = port.readable
        return None if memory is None else read_untorn(memory, part, version)

    def _ask_parameters(self, port: Port, part: Tensor, version: int) -> None:
        if port.shared:
            port.pulled_into = self._buffer(port)[0]
            port.ask(Pull(version, port.pulled_into))
        else:
            port.ask(Pull(version), room=room_for(part, port.compression.pulled))


def room_for(part: Tensor, wire: PullType) -> Tensor:
    if part.device.type == "cpu" and wire == "float32":
        return part
    return torch.empty(part.numel(), dtype=getattr(torch, wire))
