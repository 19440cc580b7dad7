"""All shards of a job as its coordinator sees them: one beside it in its own process, the others in processes of
their own, which are forked from that.
"""

import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import msgspec
import torch

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
from polyrhythm.runtime.wire.parent_death import die_with
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.shard_protocol import (
    Add,
    Apply,
    Arrived,
    Drop,
    Forget,
    FromCoordinator,
    Hello,
    KeepState,
    KeptState,
    ShardToCoordinator,
    StateShape,
    ToShard,
)

log = logging.getLogger(__name__)


class ShardSettings(msgspec.Struct, frozen=True):
    """Of a shard in a process of its own, which goes on from what is kept under the number `restored`, if it is not 0;
    its parameters then have this `version`.
    """

    job: str
    token: str
    index: int
    count: int
    compensation: str = "none"
    allowed: tuple[str, ...] = ()
    threads: int = 1
    restored: int = 0
    version: int = 0


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
        self.kept: Callable[[int], None] = lambda _: None
        """Called with the number of a record when all others have kept their part of it."""
        self._keeping: Counter[int] = Counter()

    def start_processes(
        self,
        config: JobConfig,
        loop: Loop,
        lost: Callable[[str], None],
        memory: RecoveryMemory | None = None,
        restored: tuple[int, int] = (0, 0),
    ) -> tuple[tuple[str, ...], ...]:
        """Start the shards of a job but for the first, each in a process of its own.

        Args:
            config: of the job.
            loop: of this process.
            lost: told why one is gone.
            memory: where they keep their parts of records.
            restored: as in `ShardSettings`, number and version.

        Returns:
            Their addresses: on this host, then where workers of other hosts reach them.
        """
        processes = []
        hosts = [address.rpartition(":")[0] for address in config.listen]
        for index in range(1, config.shards):
            own = config.job, config.token, index, config.shards, config.compensation
            settings = ShardSettings(*own, restored=restored[0], version=restored[1])
            here = f"unix:@polyrhythm-{config.job}-shard-{index}"
            processes.append(ShardProcess(settings, here, *(f"{host}:0" for host in hosts), memory=memory))
        for process in processes:
            process.join(loop, self, lost)
        return tuple(zip(*(process.addresses for process in processes), strict=True))

    def keep(self, number: int) -> None:
        """Have the others keep their parts of the record of this number; see `kept`."""
        self.tell_others(KeepState(number))

    def kept_at_one(self, number: int) -> None:
        self._keeping[number] += 1
        if self._keeping[number] == len(self.others):
            self._keeping.clear()
            self.kept(number)

    def add(self, channel: Channel) -> None:
        """A shard in another process; the handler of its channel is a `RemoteShard`."""
        self.others.append(channel)

    def at_one_shard(self, worker: int, number: int) -> None:
        if self.others and not self._at_all(worker, number):
            return
        if self.pushes is not None:
            self.pushes.arrived(worker, number)

    def _at_all(self, worker: int, number: int) -> bool:
        """Whether this was the last shard at which the gradient had not arrived."""
        counts = self._counts.setdefault(worker, Counter())
        counts[number] += 1
        if counts[number] <= len(self.others):
            return False
        # Each shard gets a worker's gradients in order, so what is left of earlier ones was dropped meanwhile.
        self._counts[worker] = Counter({later: count for later, count in counts.items() if later > number})
        return True

    def tell_others(self, message: Apply | Drop | Forget | KeepState) -> None:
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
        if isinstance(message, Arrived):
            self._group.at_one_shard(message.worker, message.number)
        elif isinstance(message, KeptState):
            self._group.kept_at_one(message.number)
        else:
            raise FrameError(f"a shard sent {type(message).__name__} to the coordinator")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"a shard announced {payload.nbytes} bytes to the coordinator")

    def lost(self, reason: str) -> None:
        self._lost(f"a parameter server is gone: {reason}")


class ShardProcess:
    """A shard in a process that is forked from this one, and ends with it or with the coordinator's connection to it.

    What a shard imports is there already, so that it serves at once.

    Args:
        settings: what it is started with.
        addresses: where it listens; the coordinator uses the first.
        memory: where it keeps its state, and finds that of the one before it.
    """

    def __init__(self, settings: ShardSettings, *addresses: str, memory: RecoveryMemory | None = None) -> None:
        self._settings = settings
        with ExitStack() as stack:
            listeners = [stack.enter_context(listen(address)) for address in addresses]
            self.addresses = tuple(map(address_of, listeners))
            warm_up()
            parent = os.getpid()
            self.pid = os.fork()
            if not self.pid:
                serve(settings, listeners, memory, parent)

    def join(self, loop: Loop, group: ShardGroup, lost: Callable[[str], None]) -> None:
        hello = Hello(self._settings.job, "coordinator", 0)
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

    def __init__(self, service: ShardService, loop: Loop, channel: Channel, keep: Callable[[int], None]) -> None:
        self._service, self._loop = service, loop
        self._channel, self._keep = channel, keep

    def received(self, message: Any) -> None:
        match message:
            case KeepState(number=number):
                self._keep(number)
                self._channel.send(KeptState(number))
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
    """Body of a shard's process; see `ShardProcess`."""

    def __init__(
        self, settings: ShardSettings, listeners: Sequence[socket.socket], memory: RecoveryMemory | None = None
    ) -> None:
        self.loop = Loop()
        self._coordinator: Channel | None = None
        self._index, self._memory = settings.index, memory
        own = settings.index, settings.count, self._arrived, settings.compensation, settings.allowed
        self._service = ShardService(*own)
        if memory is not None and settings.restored:
            self._restore(memory, settings)
        self._sums = Sums(lambda: self._service.message_bytes)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToShard | FromCoordinator | Add)
        for listener in listeners:
            Acceptor(self.loop, listener, settings.job, settings.token, decoder, self._admit)

    def _keep(self, number: int) -> None:
        """Keep what it has as a part of the record of this number."""
        assert self._memory is not None, "nobody asks for it otherwise"
        shape, numbers = self._service.state()
        self._memory.write_part(self._index, number, msgspec.msgpack.encode(shape), numbers)

    def _restore(self, memory: RecoveryMemory, settings: ShardSettings) -> None:
        kept = memory.read_part(settings.index, settings.restored)
        shape = msgspec.msgpack.decode(kept.record, type=StateShape)
        self._service.restore(shape, kept.numbers, settings.version)

    def _admit(self, channel: Channel, hello: Hello) -> "WorkerConnection | CoordinatorConnection | SumAcceptor":
        if hello.role == "worker":
            return WorkerConnection(self._service, hello.rank, channel)
        if hello.role == "sums":
            return SumAcceptor(self._sums, channel)
        if hello.role != "coordinator" or self._coordinator is not None or not channel.local:
            raise UsageError(f"this is a parameter server, not for a {hello.role}")
        self._coordinator = channel
        return CoordinatorConnection(self._service, self.loop, channel, self._keep)

    def _arrived(self, worker: int, number: int) -> None:
        assert self._coordinator is not None, "the coordinator connects before it tells workers the address"
        self._coordinator.send(Arrived(worker, number))


def serve(
    settings: ShardSettings, listeners: Sequence[socket.socket], memory: RecoveryMemory | None, parent: int
) -> NoReturn:
    """In a process that has just been forked."""
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with the coordinator
        torch.set_num_threads(settings.threads)
        server = ShardServer(settings, listeners, memory)
        server.loop.run()
        code = 0
    except BaseException:
        log.exception("a parameter server failed")
    finally:
        os._exit(code)
