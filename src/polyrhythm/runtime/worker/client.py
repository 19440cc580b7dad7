"""A worker's client of the job: the coordinator's messages in order, and the servers behind the first connection."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import Outer
from polyrhythm.errors import FrameError
from polyrhythm.runtime.collectives.server_reduce import SumThread
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address, Cut, Heartbeat, JobInfo, ToCoordinator, ToWorker
from polyrhythm.runtime.wire.shard_protocol import Broken, FromShard, Hello, Rejected, Welcome
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.compression import parse_compression

STORE_TIMEOUT = timedelta(seconds=30)
"""How long the job's meeting point may take to answer."""


FOREVER_S = 1e6
"""Waiting for other workers has no limit of its own: the coordinator knows who is alive, and its own end is noticed."""


class CoordinatorClient:
    """Connects one worker to a job.

    Args:
        address: of the coordinator.
        rank: of this worker.
        replica: what travels.
        arguments: those of the script's session, of which the coordinator makes its config with what it was started
            with.
        timeout_s: how long a server may take to answer; waiting for other workers is not limited by it.

    Raises:
        UnreachableError: if the coordinator cannot be reached.
        UsageError: if it refuses this worker.
    """

    def __init__(
        self,
        address: Address,
        rank: int,
        replica: ScriptReplica,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        timeout_s: float = 60.0,
    ) -> None:
        self._loop = Loop()
        self._replica = replica
        self._on_cpu = replica.device.type == "cpu"
        self._inbox: deque[Any] = deque()
        self._store: TCPStore | None = None
        self._client = ShardClient(self._loop, rank, self._inbox.append, timeout_s)
        hello = Hello(address.job, "worker", rank, address.token, dict(arguments))
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | ToWorker | JobInfo)
        self._coordinator = self._client.connect(address.coordinator, hello, decoder)
        self.info = self._await_info()
        for shard in self.info.shards:
            self._client.connect(shard, hello, decoder)
        self._client.open(replica.wire_layout, replica.spec(), parse_compression(self.config.compress))
        self._sums = SumThread(address, rank, self.info.shards) if self.config.averaging == "server" else None
        self._flat: Tensor | None = None
        self._swapped: Tensor | None = None
        self._exchange: DDPExchange | None = None
        self._heartbeat = HeartbeatThread(address, rank, self.config.heartbeat_s, self._cut)

    def _await_info(self) -> JobInfo:
        """What the coordinator says about the job to every newcomer."""
        self._client.wait(lambda: any(isinstance(each, JobInfo) for each in self._inbox), "while it joined the job")
        info: JobInfo = next(each for each in self._inbox if isinstance(each, JobInfo))
        self._inbox.remove(info)
        return info

    @property
    def config(self) -> JobConfig:
        """The settings of the job, as they hold for everyone."""
        return self.info.config

    def send(self, message: ToCoordinator | Broken) -> None:
        self._coordinator.send(message)

    def hold(self, message: ToCoordinator) -> None:
        """Send to the coordinator in front of the next message, or before waiting for one of its own."""
        self._coordinator.hold(message)

    def flush(self) -> None:
        self._coordinator.release()

    def receive(self) -> ToWorker:
        """Wait for the coordinator's next message, as long as the coordinator lives."""
        if not self._inbox:
            self._coordinator.release()
            self._client.wait(self._inbox.__len__, "while it waited for the coordinator", timeout_s=FOREVER_S)
        message: ToWorker = self._inbox.popleft()
        return message

    def poll(self) -> ToWorker | None:
        if not self._inbox:
            if self._client.broken:
                self._client.wait(lambda: True, "between two steps")
            self._loop.step(0.0)
        return self._inbox.popleft() if self._inbox else None

    def push(self, number: int) -> None:
        """Send the replica's gradients to the servers, straight into shared memory where that is possible.

        There the word of it goes with the next message to the coordinator.
        """
        if self._on_cpu and self._client.put(number, self._replica.gather_gradients):
            return
        buffer = self._client.gradient_buffer()
        if buffer is None or not self._on_cpu:
            buffer = self._buffer()
        self._replica.gather_gradients(buffer)
        self._client.push(number, buffer, held=True)

    @property
    def full_duplex(self) -> bool:
        """Whether parameters may come while gradients go: not where nothing travels."""
        return self.config.full_duplex and not self._client.shared

    def swap(self, number: int) -> int:
        gradients = self._buffer()
        if self._swapped is None:
            self._swapped = torch.empty_like(gradients)
        self._replica.gather_gradients(gradients)
        return self._client.swap(number, gradients, self._swapped)

    def take_swapped(self) -> None:
        assert self._swapped is not None, "there was no swap"
        self._replica.scatter_parameters(self._swapped)

    def pull(self, version: int) -> None:
        """Give the replica the servers' parameters, of at least `version`; from shared memory without a copy between.

        It has parts of several versions for a short time if they change meanwhile, and gets them again.
        """
        if self._on_cpu and self._client.hand(self._replica.scatter_parameters, version):
            return
        flat = self._buffer()
        self._client.pull(flat, version)
        self._replica.scatter_parameters(flat)

    def upload(self, version: int) -> None:
        """Send the replica's parameters and optimizer state to the servers, and wait until they are in place."""
        flat = self._buffer()
        self._replica.gather_parameters(flat)
        self._client.upload(flat, self._replica.export_state(), version)

    def download(self, version: int) -> None:
        parameters, state, _ = self._client.download(version)
        self._replica.scatter_parameters(parameters)
        self._replica.import_state(state)

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int) -> None:
        """Form the group of a phase with these members at the job's meeting point."""
        if self._store is None:
            host, port = self.info.store
            self._store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
        self._exchange = exchange
        exchange.state_treatment, exchange.outer = self.config.averaged_state, Outer(self.config.delta_rate)
        if self._sums is not None:
            exchange.launch = self._sums.launch
        exchange.meet(self._store, members, phase_name(phase))

    def close(self) -> None:
        self._heartbeat.stop()
        if self._sums is not None:
            self._sums.stop()
        self._client.close()
        self._loop.close()

    def _cut(self, message: Cut) -> None:
        """In the heartbeat's thread, while the worker may stand in a collective for ever."""
        if self._exchange is not None:
            self._exchange.cut(phase_name(message.phase), message.reason, message.after)

    def _buffer(self) -> Tensor:
        if self._flat is None:
            self._flat = torch.empty(self._replica.layout.size, device=self._replica.device)
        return self._flat


class HeartbeatThread(threading.Thread):
    """Tells the coordinator that this process is running, also while it computes; a stopped process misses its
    heartbeats.

    Args:
        address: of the coordinator.
        rank: of this worker.
        period_s: seconds between two heartbeats.
        cut: called, in this thread, when the coordinator says that a collective will never end.
    """

    def __init__(self, address: Address, rank: int, period_s: float, cut: Callable[[Cut], None]) -> None:
        super().__init__(name="polyrhythm-heartbeat", daemon=True)
        self._loop = Loop(spin_s=0.0)  # a beat is in no hurry
        self._period_s = period_s
        self._cut = cut
        self._stopping = False
        hello = Hello(address.job, "heartbeat", rank, address.token)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Welcome | Rejected | Cut)
        self._channel = join(self._loop, address.coordinator, hello, decoder, self)
        self._loop.call_later(0.0, self._beat)
        self.start()

    def run(self) -> None:
        while not self._stopping:
            self._loop.step()

    def stop(self) -> None:
        self._stopping = True
        self._loop.wake()
        self.join()
        self._loop.close()

    def received(self, message: Any) -> None:
        if isinstance(message, Cut):
            self._cut(message)

    def destination(self, message: Any, payload: Any) -> memoryview:
        raise FrameError("the coordinator sent numbers to a heartbeat")

    def lost(self, reason: str) -> None:
        # The worker's own connection tells it.
        self._stopping = True

    def _beat(self) -> None:
        self._channel.send(Heartbeat())
        self._loop.call_later(self._period_s, self._beat)


def phase_name(number: int) -> str:
    return f"phase-{number}"
