"""A worker's side of sums over the servers: what it contributes goes out, and everyone's sum comes back in its place.

It has connections and a thread of its own, so that sums travel while the worker computes. Each server adds up an equal
part of the vector; between processes of one host it goes through a socket as well.
"""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from polyrhythm.errors import FrameError, GroupError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import LoopThread
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.shard_protocol import Add, Hello, Rejected, Summed, Welcome
from polyrhythm.runtime.wire.worker_buffers import as_bytes


class Summing:
    """A sum under way in the place of this member's contribution; as a `InFlight`, it ends with its generation.

    Args:
        generation: who takes part.
        number: of the sum in the generation.
        tensor: flat, float32.
        servers: how many add it up.
        zero: whether this member contributes nothing, so that nothing need be sent.
    """

    def __init__(self, generation: Generation, number: int, tensor: Tensor, servers: int, zero: bool) -> None:
        self.key = generation.prefix, number
        self.health = generation.health  # the generation itself must not be dropped in the thread that holds this
        self.rank, self.size, self.zero = generation.rank, generation.size, zero
        self._members, self._tensor = generation.members, tensor
        self._host = tensor.detach().cpu()
        self.parts = self._host.tensor_split(servers)
        self._missing = sum(map(bool, map(len, self.parts)))
        self._ended = threading.Event()
        self.health.await_end(self)

    @property
    def over(self) -> bool:
        return not self._missing

    def landed(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.health.end(self)

    def end(self) -> None:
        self._ended.set()

    def wait(self) -> None:
        """Until the sum is here.

        Raises:
            GroupError: when a member or a server is lost; the content of the tensor is undefined then.
        """
        self._ended.wait()
        if self.health.failure is not None:
            raise GroupError(
                f"sum over the servers in generation {self.key[0]!r} among {self._members} failed: "
                f"{self.health.failure}"
            )
        if self._tensor.device.type != "cpu":
            self._tensor.copy_(self._host)


class SumThread(LoopThread):
    """Sends contributions to the servers and receives sums.

    Args:
        address: of the coordinator, beside which the first server is.
        rank: of this worker in the job.
        shards: addresses of the other servers.

    Raises:
        UnreachableError: if a server cannot be reached.
    """

    def __init__(self, address: Address, rank: int, shards: Sequence[str] = ()) -> None:
        super().__init__("polyrhythm-sums")
        self._under_way: dict[tuple[str, int], Summing] = {}
        self._generation, self._number = "", 0
        self._reason = ""
        hello, token = Hello(address.job, "sums", rank), address.token
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Welcome | Rejected | Summed)
        addresses = (address.coordinator, *shards)
        self._channels: list[Channel] = [
            join(self.loop, at, hello, decoder, SumPort(self, index), token=token) for index, at in enumerate(addresses)
        ]
        self.start()

    def launch(self, generation: Generation, tensor: Tensor, zero: bool = False) -> Summing:
        """Start to add up the members' tensors in place; see `collectives.launch_sum`."""
        if generation.prefix != self._generation:
            self._generation, self._number = generation.prefix, 0
        one = Summing(generation, self._number, tensor, len(self._channels), zero)
        self._number += 1
        self.loop.call_from_thread(partial(self._send, one))
        return one

    # -- in the thread -------------------------------------------------------------------------------------------------

    def room(self, message: Summed, server: int, elements: int) -> Tensor:
        """Where the sum of a server belongs; one of a generation that is over is received all the same."""
        one = self._under_way.get((message.generation, message.number))
        return torch.empty(elements) if one is None else one.parts[server]

    def landed(self, message: Summed) -> None:
        if (one := self._under_way.get((message.generation, message.number))) is not None:
            one.landed()

    def fail(self, reason: str) -> None:
        self._reason = f"a parameter server is gone: {reason}"
        for one in self._under_way.values():
            if not one.over:
                one.health.fail(self._reason)

    def _send(self, one: Summing) -> None:
        self._under_way = {
            key: other for key, other in self._under_way.items() if key[0] == one.key[0] and not other.over
        }
        self._under_way[one.key] = one
        for channel, part in zip(self._channels, one.parts, strict=True):
            if len(part):
                message = Add(*one.key, one.rank, one.size, len(part))
                numbers = (None, None) if one.zero else (as_bytes(part), Payload("float32", len(part)))
                channel.send(message, *numbers)
        if self._reason:
            one.health.fail(self._reason)


class SumPort:
    def __init__(self, thread: SumThread, server: int) -> None:
        self._thread = thread
        self._server = server

    def received(self, message: Any) -> None:
        if not isinstance(message, Summed):
            raise FrameError(f"a server sent {type(message).__name__} instead of a sum")
        self._thread.landed(message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if not isinstance(message, Summed):
            raise FrameError(f"a server announced {payload.nbytes} bytes that are no sum")
        room = self._thread.room(message, self._server, payload.elements)
        if payload != Payload("float32", len(room)):
            raise FrameError(f"a server announced {payload.elements} numbers for a sum of {len(room)}")
        return as_bytes(room)

    def lost(self, reason: str) -> None:
        self._thread.fail(reason)
