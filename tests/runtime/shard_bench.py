"""A coordinator's data plane in this process: shards on one loop with their workers, so that a test is
deterministic.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import torch
from torch import Tensor

from polyrhythm.runtime.server.pushes import PushMatcher
from polyrhythm.runtime.server.shard_group import CoordinatorConnection, RemoteShard, ShardGroup, WorkerConnection
from polyrhythm.runtime.server.shard_service import ShardService
from polyrhythm.runtime.wire.connection import Channel, address_of, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import Acceptor, join
from polyrhythm.runtime.wire.shard_protocol import (
    Apply,
    Arrived,
    Drop,
    FromCoordinator,
    FromShard,
    Hello,
    Layout,
    OptimizerSpec,
    Parameter,
    ShardMessage,
    ShardToCoordinator,
    ToShard,
    WeightedGradient,
)
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.compression import parse_compression

NAMES = count()
SIZES_LAYOUT = Layout(((Parameter("w0", (40,)),), (Parameter("w1", (24,)),)))
SGD = OptimizerSpec("SGD", {"lr": 1.0})


class Note(ShardMessage):
    """Stands for whatever a coordinator says besides."""

    text: str


SERVER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(Hello | ToShard | FromCoordinator | Note)
CLIENT: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromShard | Note)
COORDINATOR: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(ShardToCoordinator)


class CoordinatorWorker(WorkerConnection):
    """A worker at the shard beside the coordinator: notes are kept, everything else is the shard's."""

    def __init__(self, bench: "Bench", worker: int, channel: Channel) -> None:
        super().__init__(bench.group.service, worker, channel)
        self._bench = bench
        self.number = worker

    def received(self, message: Any) -> None:
        if isinstance(message, Note):
            self._bench.notes.append(message.text)
        else:
            super().received(message)

    def lost(self, reason: str) -> None:
        super().lost(reason)
        self._bench.lost[self.number] = reason


class Arrivals(PushMatcher):
    """Notes which gradients are held by every shard."""

    def __init__(self, seen: list[tuple[int, int]]) -> None:
        super().__init__(lambda *_: None)
        self._seen = seen

    def arrived(self, worker: int, number: int) -> None:
        self._seen.append((worker, number))


class Bench:
    """A group of shards over one carrier.

    Args:
        carrier: unix or tcp.
        shards: how many; all but the first are reached through sockets, as if they were in other processes.
        token: of the job.
        others: whether to make them; otherwise a test adds them.
        layout: of every worker's model unless `worker` is told otherwise.
    """

    def __init__(
        self,
        carrier: str = "unix",
        shards: int = 1,
        sizes: tuple[int, ...] = (40, 24),
        compensation: str = "none",
        optimizer: OptimizerSpec = SGD,
        allowed: tuple[str, ...] = (),
        token: str = "secret",
        others: bool = True,
    ) -> None:
        self.loop = Loop()
        self.layout = Layout(tuple((Parameter(f"w{i}", (size,)),) for i, size in enumerate(sizes)))
        self.size = sum(sizes)
        self.token = token
        self.optimizer = optimizer
        self.arrived: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.kept: list[int] = []
        self.lost: dict[int, str] = {}
        self.channels: dict[int, Channel] = {}
        self.carrier = carrier
        self.group = ShardGroup(shards, Arrivals(self.arrived), compensation, allowed)
        self.addresses = [self._listen(self._admit_at_coordinator)]
        if others:
            self.addresses += [self._other_shard(index, shards, compensation, allowed) for index in range(1, shards)]

    def worker(self, rank: int, layout: Layout | None = None, compress: str = "none") -> ShardClient:
        """A connected worker that has opened its shards."""
        client = ShardClient(self.loop, rank, lambda message: None, timeout_s=5.0)
        for address in self.addresses:
            client.connect(address, Hello("job", "worker", rank), CLIENT, self.token)
        client.open(layout or self.layout, self.optimizer, parse_compression(compress))
        return client

    def until(self, done: Any) -> None:
        assert self.loop.run_until(done, 5.0), (self.arrived, self.lost)

    def push(self, client: ShardClient, number: int, value: float | Tensor) -> None:
        """Push a gradient and wait until it is held everywhere."""
        gradient = value if isinstance(value, Tensor) else torch.full((self.size,), value)
        client.push(number, gradient)
        self.until(lambda: (client.rank, number) in self.arrived)

    def apply(self, *gradients: tuple[Any, ...], **options: Any) -> None:
        message = Apply(tuple(WeightedGradient(*gradient) for gradient in gradients), **options)
        self.group.tell_others(message)
        self.group.service.apply(message)

    def drop(self, *gradients: tuple[int, int]) -> None:
        self.group.drop(Drop(gradients))

    def pull(self, client: ShardClient, version: int = 0) -> Tensor:
        out = torch.full((self.size,), torch.nan)
        client.pull(out, version)
        return out

    def close(self) -> None:
        self.loop.close()

    def _listen(self, admit: Any) -> str:
        address = "tcp:127.0.0.1:0" if self.carrier == "tcp" else f"unix:@polyrhythm-bench-{id(self)}-{next(NAMES)}"
        listener = listen(address)
        Acceptor(self.loop, listener, "job", self.token, SERVER, admit)
        return address_of(listener)

    def _admit_at_coordinator(self, channel: Channel, hello: Hello) -> CoordinatorWorker:
        self.channels[hello.rank] = channel
        return CoordinatorWorker(self, hello.rank, channel)

    def _other_shard(self, index: int, shards: int, compensation: str, allowed: tuple[str, ...]) -> str:
        """A shard as in a process of its own, reached only through its sockets."""
        coordinator: list[Channel] = []
        service = ShardService(
            index, shards, lambda *gradient: coordinator[0].send(Arrived(*gradient)), compensation, allowed
        )

        def admit(channel: Channel, hello: Hello) -> WorkerConnection | CoordinatorConnection:
            if hello.role == "worker":
                return WorkerConnection(service, hello.rank, channel)
            coordinator.append(channel)
            return CoordinatorConnection(service, self.loop, channel, self.kept.append)

        address = self._listen(admit)
        self.group.add(
            join(
                self.loop,
                address,
                Hello("job", "coordinator", 0),
                COORDINATOR,
                RemoteShard(self.group, self._shard_lost),
                token=self.token,
            )
        )
        return address

    def _shard_lost(self, reason: str) -> None:
        self.lost[-1] = reason


MakeBench = Callable[..., Bench]
"""Of the fixture `make`."""
