"""A worker's client of the job: the coordinator's messages in order, and the servers behind the first connection."""

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import Policy
from polyrhythm.errors import GroupError, ServerLostError, UnreachableError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.returned import AskState, JobState, Returned
from polyrhythm.runtime.collectives.group_health import first_line
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.peer_sockets import know_token
from polyrhythm.runtime.collectives.server_reduce import Summing, SumThread
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.restarts import tell_status
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address, Awaited, Bye, Cut, JobInfo, ToCoordinator, ToWorker
from polyrhythm.runtime.wire.shard_protocol import FromShard, Hello
from polyrhythm.runtime.wire.tls.cover import check_cover
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.losses.figures import ScriptFigures
from polyrhythm.runtime.worker.presence.cuts import PhaseExchange, phase_name
from polyrhythm.runtime.worker.presence.heartbeat import RETURN_S, HeartbeatThread, no_objection
from polyrhythm.runtime.worker.presence.route import Route
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.compression import parse_compression

STORE_TIMEOUT = timedelta(seconds=30)
"""How long the job's meeting point may take to answer."""

STORE_S = STORE_TIMEOUT.total_seconds()

STORE_ATTEMPT = timedelta(seconds=1)
"""How long one attempt to reach it may take."""

FOREVER_S = 1e6
"""Waiting for other workers has no limit of its own: the coordinator knows who is alive, and its own end is noticed."""


Told = TypeVar("Told", JobInfo, JobState)

ENDED: set[str] = set()
"""Jobs in which this process has had a part that is over."""


class CoordinatorClient:
    """Connects one worker to a job.

    Args:
        address: of the coordinator.
        rank: of this worker.
        replica: what travels.
        arguments: those of the script's session, of which the coordinator makes its config with what it was started
            with.
        timeout_s: how long a server may take to answer; waiting for other workers is not limited by it.
        trainings: that the script has finished in this process.

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
        trainings: int = 0,
    ) -> None:
        self._loop = Loop()
        self._replica = replica
        self._on_cpu = replica.device.type == "cpu"
        self._inbox: deque[Any] = deque()
        self._interrupted = self._final = self._closed = False
        self._store: TCPStore | None = None
        self._route, self._timeout_s = Route(address), timeout_s
        if address.standby:  # it may have taken over before this worker has come
            self._route.find(timeout_s)
        self._hello = Hello(address.job, "worker", rank, dict(arguments), trainings=trainings)
        self._connect()
        know_token(address.token)
        self._sums = self._join_sums()
        self._flat: Tensor | None = None
        self._swapped: Tensor | None = None
        self._at_hand = PhaseExchange(phase_name)
        periods = self.config.heartbeat_s, self.config.hang_after
        self._phase = self._losses = self._returns = 0
        self.reported = ScriptFigures()
        self.objection: Callable[[Policy[Any]], str] = no_objection
        self._leave: Callable[[], None] | None = None
        self._asked_to_leave = False
        self._heartbeat = HeartbeatThread(self._route, rank, *periods, self)

    def _connect(self) -> None:
        address, hello, replica = self._route.address, self._hello, self._replica
        self._client = ShardClient(self._loop, hello.rank, self._inbox.append, self._timeout_s)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | ToWorker | JobInfo | JobState)
        self._coordinator = self._client.connect(address.coordinator, hello, decoder, address.token)
        self.info = self._await_info()
        check_cover(parse_policy(self.config.policy))
        for shard in self.info.shards:
            self._client.connect(shard, hello, decoder, address.token)
        self._client.open(replica.wire_layout, replica.spec(), parse_compression(self.config.compress))
        self._client.recovers = self.info.recovers and not self._final

    def _launch_sum(self, generation: Generation, tensor: Tensor, zero: bool = False) -> Summing:
        """At the servers of today: whoever keeps this keeps it when another coordinator follows."""
        assert self._sums is not None, "the job adds up on servers"
        return self._sums.launch(generation, tensor, zero)

    def _join_sums(self) -> SumThread | None:
        if self.config.averaging != "server":
            return None
        return SumThread(self._route.address, self._hello.rank, self.info.shards)

    @property
    def recovers(self) -> bool:
        """Whether another coordinator follows one that dies."""
        return self.info.recovers

    def come_back(self, returned: Returned) -> None:
        """Meet the coordinator that takes the place of one that has died, and tell it how far this worker is.

        Raises:
            ClusterError: if there is none.
        """
        deadline = time.monotonic() + RETURN_S
        while True:
            self._route.find(min(RETURN_S, self._timeout_s), lambda: self._final)
            self._client.close()
            self._inbox.clear()
            self._store = None
            if self._sums is not None:
                self._sums.stop()
                self._sums = None
            try:
                self._connect()
                self._sums = self._join_sums()
            except (UnreachableError, ServerLostError):  # it may die, too
                if time.monotonic() > deadline or self._final:
                    raise
            else:
                self._returns += 1
                self._coordinator.send(returned)
                return

    def _await_info(self) -> JobInfo:
        """What the coordinator says about the job to every newcomer."""
        return self._await(JobInfo, "while it joined the job")

    def _await(self, kind: type[Told], when: str) -> Told:
        """The next message of this kind; others stay."""
        self._client.wait(lambda: any(isinstance(each, kind) for each in self._inbox), when)
        found: Told = next(each for each in self._inbox if isinstance(each, kind))
        self._inbox.remove(found)
        return found

    @property
    def config(self) -> JobConfig:
        """The settings of the job, as they hold for everyone."""
        return self.info.config

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("the session is closed; use it inside of its with block")

    def tell_figures(self, values: Mapping[str, Any]) -> None:
        """With the next message that goes to the coordinator."""
        self._require_open()
        self.reported.tell(values)

    def send(self, message: ToCoordinator) -> None:
        self._require_open()
        self._coordinator.send(message)

    def hold(self, message: ToCoordinator) -> None:
        """Send to the coordinator in front of the next message, or before waiting for one of its own."""
        self._coordinator.hold(message)

    def flush(self) -> None:
        self._coordinator.release()

    def tell_aside(self, message: Saved) -> None:
        """From any thread, on the connection that is served at all times."""
        self._heartbeat.tell(message)

    def receive(self, within_step: bool = False) -> ToWorker:
        """Wait for the coordinator's next message, as long as it lives; `within_step`, whatever else is asked."""
        client = self._client
        if not self._inbox or (client.broken and client.lost):
            if self._coordinator.held:
                self._coordinator.release()
            while not (self._inbox or (self._interrupted and not within_step) or client.broken):
                self._loop.step(FOREVER_S)
            if client.broken:
                client.wait(lambda: True, "while it waited for the coordinator")  # raises what has happened
            if not self._inbox:
                raise SystemExit(tell_status(LEFT))
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
        if self._client.broken:
            if self._client.lost:
                return None  # what has come counts for nothing any more; `receive` tells
            if not self._inbox:
                self._client.wait(lambda: True, "between two steps")  # raises what has happened
        if not self._inbox:
            self._loop.step(0.0)
        return self._inbox.popleft() if self._inbox else None

    def is_awaited(self, epoch: int) -> bool:
        """Whether the coordinator has said so after this epoch; all else that it has said stays."""
        if self._client.broken:  # raises what has happened
            self._client.wait(lambda: True, "while it waited for others outside of its loop")
        self._loop.step(0.0)
        if (message := Awaited(epoch)) in self._inbox:
            self._inbox.remove(message)
            return True
        return False

    def push(self, number: int) -> int | None:
        """Send the replica's gradients to the servers, straight into shared memory where that is possible.

        There nothing is sent: the `Pushed` of the step is to name the buffer, which this gives.
        """
        gather = self._replica.gather_gradients if self._on_cpu else self._gather_by_way
        if (index := self._client.put(number, gather)) is not None:
            return index
        buffer = self._client.gradient_buffer()
        if buffer is None or not self._on_cpu:
            buffer = self._buffer()
        self._replica.gather_gradients(buffer)
        self._client.push(number, buffer)
        return None

    def _gather_by_way(self, out: Tensor) -> None:
        """Gather on the replica's device, and copy it all at once."""
        self._replica.gather_gradients(self._buffer())
        out.copy_(self._buffer())

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

    def download(self, version: int) -> int:
        """Give the replica what the servers have; its version, which is at least this one."""
        self._require_open()
        parameters, state, read = self._client.download(version)
        self._replica.scatter_parameters(parameters)
        self._replica.import_state(state)
        return read

    def ask_state(self, version: int | None = None) -> JobState:
        """How the job is; of the servers' state, which the replica gets if a version is asked for, in the same moment.

        Both questions go out as one, and the coordinator answers both before it hears of anything else. Where it does
        not, as several servers, the answer is of another version than the state, and says of none what is left.
        """
        self._require_open()
        self._coordinator.hold(AskState())
        if version is None:
            self._coordinator.release()
        read = None if version is None else self.download(version)
        told = self._await(JobState, "while it asked how the job is")
        return told if told.version == read else JobState(told.resumption)

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int, gathers: bool = False) -> None:
        """Form the group of a phase with these members at the job's meeting point; whether they will `gather`."""
        if self._store is None:
            self._store = open_store(self.info.store)
        self._phase = phase
        self._at_hand.begin(exchange, self.config)
        if self._sums is not None:
            exchange.launch = self._launch_sum
        try:
            exchange.meet(self._store, members, phase_name(phase), gathers)
        except GroupError:
            self._store = None  # what still builds may wait at it, and lets nobody else ask meanwhile
            raise

    def train_again(self, bye: Bye) -> None:
        """Say so, and wait until all others have finished this training, too, and its coordinator has ended."""
        self._heartbeat.end()
        self._heartbeat.loop.wake()
        self.send(bye)
        while not (self._client.broken or self._interrupted):
            self._loop.step(FOREVER_S)

    def close(self) -> None:
        self._closed = True
        ENDED.add(self._route.address.job)
        self._heartbeat.stop()
        if self._sums is not None:
            self._sums.stop()
        self._client.close()
        self._loop.close()

    def cut(self, message: Cut) -> None:
        """In the heartbeat's thread."""
        self._at_hand.cut(message)

    def lose(self, reason: str, final: bool, silent: bool = False) -> None:
        """In the heartbeat's thread: whatever the worker waits for, it waits no more.

        If another coordinator follows, all connections end by themselves. An exchange in which all take part comes to
        its end, and who stands tells those who wait for it: so none succeeds for some only.
        """
        self._losses, exchange = self._losses + 1, self._at_hand.exchange
        if exchange is not None and self._returns < self._losses:
            exchange.stop_building(phase_name(self._phase), reason)
        if final:
            self._final, self._client.recovers = True, False
        elif not silent:
            return
        self._coordinator.give_up(reason)
        if exchange is not None:
            exchange.abandon(reason)

    def _buffer(self) -> Tensor:
        if self._flat is None:
            self._flat = torch.empty(self._replica.layout.size, device=self._replica.device)
        return self._flat


def open_store(address: tuple[str, int]) -> TCPStore:
    """torch tries an address at which nobody listens any more for as long as it may, so it may for a short time."""
    deadline = time.monotonic() + STORE_S
    while True:
        try:
            socket.create_connection(address, STORE_S).close()
            store = TCPStore(*address, is_master=False, timeout=STORE_ATTEMPT)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) or time.monotonic() > deadline:
                what = "the meeting point of the job cannot be reached"
                raise GroupError(f"{what}: {first_line(error)}") from None
        else:
            store.set_timeout(STORE_TIMEOUT)
            return store
