"""A worker's client of the job: the coordinator's messages in order, and the servers behind the first connection."""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import Outer
from polyrhythm.errors import FrameError, GroupError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.collectives.gloo_connections import shut_down_to
from polyrhythm.runtime.collectives.peer_sockets import know_token
from polyrhythm.runtime.collectives.server_reduce import SumThread
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.wire.event_loop import Loop, LoopThread
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import (
    Address,
    Confirmed,
    Cut,
    Heartbeat,
    JobInfo,
    LeaveJob,
    Propose,
    ToCoordinator,
    ToWorker,
)
from polyrhythm.runtime.wire.shard_protocol import FromShard, Hello, Rejected
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.losses import ScriptFigures
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
        self._interrupted = False
        self._store: TCPStore | None = None
        self._client = ShardClient(self._loop, rank, self._inbox.append, timeout_s)
        hello = Hello(address.job, "worker", rank, dict(arguments))
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | ToWorker | JobInfo)
        self._coordinator = self._client.connect(address.coordinator, hello, decoder, address.token)
        self.info = self._await_info()
        for shard in self.info.shards:
            self._client.connect(shard, hello, decoder, address.token)
        self._client.open(replica.wire_layout, replica.spec(), parse_compression(self.config.compress))
        know_token(address.token)
        self._sums = SumThread(address, rank, self.info.shards) if self.config.averaging == "server" else None
        self._flat: Tensor | None = None
        self._swapped: Tensor | None = None
        self._exchange: DDPExchange | None = None
        periods = self.config.heartbeat_s, self.config.hang_after
        self._last_cut: Cut | None = None
        self.reported = ScriptFigures()
        self._leave: Callable[[], None] | None = None
        self._asked_to_leave = False
        self._heartbeat = HeartbeatThread(address, rank, *periods, self)

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

    def send(self, message: ToCoordinator) -> None:
        self._coordinator.send(message)

    def hold(self, message: ToCoordinator) -> None:
        """Send to the coordinator in front of the next message, or before waiting for one of its own."""
        self._coordinator.hold(message)

    def flush(self) -> None:
        self._coordinator.release()

    def tell_aside(self, message: Saved) -> None:
        """From any thread, on the connection that is served at all times."""
        self._heartbeat.tell(message)

    def receive(self) -> ToWorker:
        """Wait for the coordinator's next message, as long as the coordinator lives."""
        if not self._inbox:
            self._coordinator.release()
            there = lambda: self._inbox or self._interrupted  # noqa: E731
            self._client.wait(there, "while it waited for the coordinator", timeout_s=FOREVER_S)
            if not self._inbox:
                raise SystemExit(LEFT)
        message: ToWorker = self._inbox.popleft()
        return message

    def when_asked_to_leave(self, leave: Callable[[], None]) -> None:
        """Call this, in the heartbeat's thread, when the coordinator asks this worker to leave."""
        self._leave = leave
        if self._asked_to_leave:
            leave()

    def ask_to_leave(self) -> None:
        """In the heartbeat's thread."""
        self._asked_to_leave = True
        if self._leave is not None:
            self._leave()

    def interrupt(self) -> None:
        """From a signal's handler: `receive` raises `SystemExit` where it would wait, now or later."""
        self._interrupted = True
        self._loop.wake()

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

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int, gathers: bool = False) -> None:
        """Form the group of a phase with these members at the job's meeting point; whether they will `gather`."""
        if self._store is None:
            host, port = self.info.store
            self._store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
        self._exchange = exchange
        if self._last_cut is not None:
            self.cut(self._last_cut)
        exchange.state_treatment, exchange.outer = self.config.averaged_state, Outer(self.config.delta_rate)
        if self._sums is not None:
            exchange.launch = self._sums.launch
        try:
            exchange.meet(self._store, members, phase_name(phase), gathers)
        except GroupError:
            self._store = None  # what still builds may wait at it, and lets nobody else ask meanwhile
            raise

    def close(self) -> None:
        self._heartbeat.stop()
        if self._sums is not None:
            self._sums.stop()
        self._client.close()
        self._loop.close()

    def cut(self, message: Cut) -> None:
        """In the heartbeat's thread, while the worker may stand in a collective for ever, or not yet in the phase."""
        self._last_cut = message
        if self._exchange is not None:
            self._exchange.cut(phase_name(message.phase), message.reason, message.after)

    def lose(self, reason: str) -> None:
        """In the heartbeat's thread: whatever the worker waits for, it waits no more."""
        self._coordinator.give_up(reason)
        shut_down_to(*self.info.store)
        if self._exchange is not None:
            self._exchange.abandon(reason)

    def _buffer(self) -> Tensor:
        if self._flat is None:
            self._flat = torch.empty(self._replica.layout.size, device=self._replica.device)
        return self._flat


class Silence:
    """How long the other side has been silent, as far as this process could hear it.

    Args:
        period_s: seconds between two looks.
        limit_s: seconds of silence that are too many.
        now_s: the time.

    Example:
        >>> silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
        >>> [silence.is_too_long(now_s) for now_s in (1.0, 2.0, 3.0, 4.0)]
        [False, False, False, True]
    """

    def __init__(self, period_s: float, limit_s: float, now_s: float) -> None:
        self._period_s, self._limit_s = period_s, limit_s
        self._heard_s = self._looked_s = now_s

    def hear(self, now_s: float) -> None:
        self._heard_s = now_s

    def is_too_long(self, now_s: float) -> bool:
        if now_s - self._looked_s > 2 * self._period_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heard_s = now_s
        self._looked_s = now_s
        return now_s - self._heard_s > self._limit_s


class HeartbeatOwner(Protocol):
    """Whose heartbeat it is; all but `reported` is called in the heartbeat's thread."""

    reported: ScriptFigures

    def cut(self, message: Cut) -> None:
        """A collective will never end."""

    def ask_to_leave(self) -> None:
        """Somebody outside wants this worker to leave the job."""

    def lose(self, reason: str) -> None:
        """The coordinator does not answer any more."""


class HeartbeatThread(LoopThread):
    """Tells the coordinator that this process is running, also while it computes, and hears the same of it.

    A stopped process misses its heartbeats. One that was stopped itself cannot tell, and listens once more.

    Args:
        address: of the coordinator.
        rank: of this worker.
        period_s: seconds between two heartbeats.
        limit_s: seconds of silence after which the coordinator is given up.
        owner: told, in this thread, what the coordinator says; what its script has reported goes with the heartbeats.
    """

    def __init__(
        self,
        address: Address,
        rank: int,
        period_s: float,
        limit_s: float,
        owner: HeartbeatOwner,
    ) -> None:
        super().__init__("polyrhythm-heartbeat")
        self._period_s, self._limit_s = period_s, limit_s
        self._owner = owner
        hello = Hello(address.job, "heartbeat", rank)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Rejected | Cut | LeaveJob | Propose | Heartbeat)
        self._channel = join(self.loop, address.coordinator, hello, decoder, self, token=address.token)
        self._silence = Silence(period_s, limit_s, self.loop.clock())
        self.loop.call_later(0.0, self._beat)
        self.start()

    def tell(self, message: Saved) -> None:
        """From any thread."""
        self.loop.call_from_thread(lambda: self._channel.send(message))

    def received(self, message: Any) -> None:
        self._silence.hear(self.loop.clock())
        if isinstance(message, Cut):
            self._owner.cut(message)
        elif isinstance(message, Propose):
            self._channel.send(Confirmed(message.number, refusal_of(message.policy)))
        elif isinstance(message, LeaveJob):
            self._owner.ask_to_leave()

    def destination(self, message: Any, payload: Any) -> memoryview:
        raise FrameError("the coordinator sent numbers to a heartbeat")

    def lost(self, reason: str) -> None:
        self.end()
        self._owner.lose(reason)

    def _beat(self) -> None:
        if self._silence.is_too_long(self.loop.clock()):
            self._channel.end(f"the coordinator has not answered for {self._limit_s:g} s; see --hang-after")
            return
        self._channel.send(Heartbeat(self._owner.reported.take()))
        self.loop.call_later(self._period_s, self._beat)


def refusal_of(policy: str) -> str:
    """Why this process cannot run a policy; its file or module may do anything when it is loaded."""
    try:
        parse_policy(policy)
    except (Exception, SystemExit) as error:
        return str(error) or repr(error)
    return ""


def phase_name(number: int) -> str:
    return f"phase-{number}"
