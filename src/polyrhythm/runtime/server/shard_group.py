"""All shards of a job as its coordinator sees them: one beside it in its own process, the others in processes of
their own.
"""

import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from polyrhythm.errors import FrameError, UsageError
from polyrhythm.runtime.server.pushes import PushMatcher
from polyrhythm.runtime.server.server_reduce import SumAcceptor, Sums
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.server.shard_service import ShardService
from polyrhythm.runtime.wire.connection import Channel, address_of, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import Acceptor, join
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.parent_death import dies_with_us
from polyrhythm.runtime.wire.shard_protocol import (
    Add,
    Apply,
    Arrived,
    Drop,
    Forget,
    FromCoordinator,
    Hello,
    ShardToCoordinator,
    ToShard,
)


class ShardSettings(msgspec.Struct, frozen=True):
    job: str
    token: str
    index: int
    count: int
    compensation: str = "none"
    allowed: tuple[str, ...] = ()
    threads: int = 1


class ShardGroup:
    """Tells every shard the same, and knows which gradients have arrived at all of them.

    Args:
        count: shards of the job; shard 0 is in this process.
        pushes: told when a gradient is held by every shard; none of a single one, which has nobody to wait for.
        compensation: spec of what is done about staleness.
        allowed: see `ParameterShard`.
    """

    def __init__(
        self,
        count: int,
        pushes: PushMatcher | None,
        compensation: str = "none",
        allowed: Collection[str] = (),
    ) -> None:
        self.pushes = pushes
        self.service = ShardService(0, count, self.at_one_shard if pushes else None, compensation, allowed)
        self.sums = Sums(lambda: self.service.message_bytes)
        self.others: list[Channel] = []
        """To the shards in other processes."""
        self._counts: dict[int, Counter[int]] = {}

    def start_processes(
        self, config: JobConfig, loop: Loop, lost: Callable[[str], None]
    ) -> tuple[tuple[str, ...], ...]:
        """Start the shards of a job but for the first, each in a process of its own.

        Returns:
            Their addresses: on this host, then where workers of other hosts reach them.
        """
        processes = []
        hosts = [address.rpartition(":")[0] for address in config.listen]
        for index in range(1, config.shards):
            settings = ShardSettings(config.job, config.token, index, config.shards, config.compensation)
            here = f"unix:@polyrhythm-{config.job}-shard-{index}"
            process = ShardProcess(settings, here, *(f"{host}:0" for host in hosts))
            process.join(loop, settings, self, lost)
            processes.append(process.addresses)
        return tuple(zip(*processes, strict=True))

    def add(self, channel: Channel) -> None:
        """A shard in another process; the handler of its channel is a `RemoteShard`."""
        self.others.append(channel)

    def at_one_shard(self, worker: int, number: int) -> None:
        counts = self._counts.setdefault(worker, Counter())
        counts[number] += 1
        if counts[number] > len(self.others):
            # Each shard gets a worker's gradients in order, so what is left of earlier ones was dropped meanwhile.
            self._counts[worker] = Counter({later: count for later, count in counts.items() if later > number})
            if self.pushes is not None:
                self.pushes.arrived(worker, number)

    def tell_others(self, message: Apply | Drop | Forget) -> None:
        """Tell the shards in other processes, in the same order everywhere; that of this process is `service`."""
        for channel in self.others:
            channel.send(message)

    def drop(self, message: Drop) -> None:
        self.tell_others(message)
        self.service.drop(message)
        if self.pushes is None:
            return
        for worker, number in message.gradients:
            self._counts.get(worker, Counter()).pop(number, None)
            self.pushes.drop(worker, number)

    def forget(self, worker: int) -> None:
        self.tell_others(Forget(worker))
        self.service.forget(worker)
        self._counts.pop(worker, None)
        if self.pushes is not None:
            self.pushes.forget(worker)


class RemoteShard:
    def __init__(self, group: ShardGroup, lost: Callable[[str], None]) -> None:
        self._group = group
        self._lost = lost

    def received(self, message: Any) -> None:
        if not isinstance(message, Arrived):
            raise FrameError(f"a shard sent {type(message).__name__} to the coordinator")
        self._group.at_one_shard(message.worker, message.number)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"a shard announced {payload.nbytes} bytes to the coordinator")

    def lost(self, reason: str) -> None:
        self._lost(f"a parameter server is gone: {reason}")


class ShardProcess:
    """A started shard process, which ends by itself when the coordinator's connection to it does.

    Args:
        settings: what it is started with.
        addresses: where it listens; the coordinator uses the first.
    """

    def __init__(self, settings: ShardSettings, *addresses: str) -> None:
        with ExitStack() as stack:
            listeners = [stack.enter_context(listen(address)) for address in addresses]
            self.addresses = tuple(map(address_of, listeners))
            descriptors = [listener.fileno() for listener in listeners]
            command = [sys.executable, "-m", "polyrhythm.runtime.server.shard_group", *map(str, descriptors)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=descriptors, preexec_fn=dies_with_us()
            )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(settings))
        self.process.stdin.close()

    def join(self, loop: Loop, settings: ShardSettings, group: ShardGroup, lost: Callable[[str], None]) -> None:
        hello = Hello(settings.job, "coordinator", 0)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ShardToCoordinator)
        group.add(join(loop, self.addresses[0], hello, decoder, RemoteShard(group, lost)))


class WorkerConnection:
    def __init__(self, service: ShardService, worker: int, channel: Channel) -> None:
        self._service = service
        self._worker = worker
        self._channel = channel

    def received(self, message: Any) -> None:
        self._service.received(self._worker, self._channel, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        return self._service.destination(self._worker, message, payload)

    def lost(self, reason: str) -> None:
        # The coordinator will say what becomes of what the worker has here.
        self._service.lost(self._worker, self._channel)


class CoordinatorConnection:
    """Handler of the coordinator's connection at a shard in a process of its own; the process ends with it."""

    def __init__(self, service: ShardService, loop: Loop) -> None:
        self._service = service
        self._loop = loop

    def received(self, message: Any) -> None:
        match message:
            case Apply():
                self._service.apply(message)
            case Drop():
                self._service.drop(message)
            case Forget(worker=worker):
                self._service.forget(worker)
            case _:
                raise FrameError(f"the coordinator sent {type(message).__name__} to a shard")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the coordinator announced {payload.nbytes} bytes to a shard")

    def lost(self, reason: str) -> None:
        # Nobody is left to say what to do.
        self._loop.stop()


class ShardServer:
    def __init__(self, settings: ShardSettings, listeners: Sequence[socket.socket]) -> None:
        self.loop = Loop()
        self._coordinator: Channel | None = None
        self._service = ShardService(
            settings.index, settings.count, self._arrived, settings.compensation, settings.allowed
        )
        self._sums = Sums(lambda: self._service.message_bytes)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToShard | FromCoordinator | Add)
        for listener in listeners:
            Acceptor(self.loop, listener, settings.job, settings.token, decoder, self._admit)

    def _admit(self, channel: Channel, hello: Hello) -> "WorkerConnection | CoordinatorConnection | SumAcceptor":
        if hello.role == "worker":
            return WorkerConnection(self._service, hello.rank, channel)
        if hello.role == "sums":
            return SumAcceptor(self._sums, channel)
        if hello.role != "coordinator" or self._coordinator is not None or not channel.local:
            raise UsageError(f"this is a parameter server, not for a {hello.role}")
        self._coordinator = channel
        return CoordinatorConnection(self._service, self.loop)

    def _arrived(self, worker: int, number: int) -> None:
        assert self._coordinator is not None, "the coordinator connects before it tells workers the address"
        self._coordinator.send(Arrived(worker, number))


def main(descriptors: Sequence[int]) -> None:
    """Entry point of a shard process: the listeners' descriptors; settings come on standard input."""
    import torch

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with the coordinator
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=ShardSettings)
    torch.set_num_threads(settings.threads)
    warm_up()
    server = ShardServer(settings, [socket.socket(fileno=descriptor) for descriptor in descriptors])
    server.loop.run()
    server.loop.close()


if __name__ == "__main__":
    main([int(descriptor) for descriptor in sys.argv[1:]])
