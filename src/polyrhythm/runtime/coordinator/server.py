"""The coordinator: the process that holds a job together, with the coordinator, shard 0 and the meeting point in one
loop.

It ends when the last worker has left, or if none comes. Workers reach it over a Unix socket named after the job, and
over TCP if it is told to listen there.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import Cluster, LeftReason, Policy, Ticket
from polyrhythm.errors import PolicyError, PolyrhythmError
from polyrhythm.policies import parse
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.recorder import JobRecorder
from polyrhythm.runtime.server.server_reduce import SumAcceptor
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.server.shard_group import ShardGroup, ShardProcess, ShardSettings
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import FrameError, Payload
from polyrhythm.runtime.wire.handshake import Acceptor, peer_pid
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import (
    Absent,
    AskStatus,
    Cut,
    EpochDone,
    Heartbeat,
    JobInfo,
    Pushed,
    Refused,
    Status,
    SwitchTo,
    ToCoordinator,
    ToWorker,
)
from polyrhythm.runtime.wire.shard_protocol import (
    FOR_SHARD,
    Add,
    Apply,
    Drop,
    Hello,
    Hyperparameter,
    Rejected,
    ToShard,
    WeightedGradient,
)

log = logging.getLogger(__name__)

LATECOMERS_S = 10.0
"""How long a job without workers waits for those that have not joined yet, once others have been there."""


class CoordinatorServer:
    """The `Effects` of a coordinator, with sockets and shards.

    Args:
        settings: see `JobConfig`.
        listeners: bound to `coordinator_address`, so that a second job of the same id has failed before, and to
            `listen`.

    Raises:
        PolyrhythmError: for a policy that cannot be read, or an address that cannot be listened on.
    """

    def __init__(self, settings: JobConfig, *listeners: socket.socket) -> None:
        self.settings = settings
        self.loop = Loop()
        self.coordinator = Coordinator(parse(settings.policy), settings.workers, self, self._elapsed, settings.epochs)
        self.shards = ShardGroup(settings.shards, self._arrived, settings.compensation)
        self._started_s = time.monotonic()
        self._channels: dict[int, Channel] = {}
        self._heartbeat_channels: dict[int, Channel] = {}
        self._heartbeats: dict[int, float] = {}
        self._looked_s = self.loop.clock()
        self._pushed: dict[tuple[int, int], Pushed] = {}
        self._complete: set[tuple[int, int]] = set()
        self._settings: dict[tuple[int, int], tuple[dict[str, Hyperparameter], ...]] = {}
        self._recorder = JobRecorder(settings, self.coordinator.job)
        self.record = self._recorder.record
        self._store = TCPStore("0.0.0.0" if settings.listen else "127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._addresses = self._start_shards()
        self._open_acceptors(listeners)
        self.loop.call_later(settings.patience_s, self._give_up_waiting)
        self.loop.call_later(settings.heartbeat_s, self._look_for_hangs)

    def run(self) -> None:
        """Serve the job until its end."""
        try:
            self.loop.run()
        finally:
            self._recorder.close(self.coordinator.figures)
            self.loop.close()

    # -- what the coordinator asks (see `Effects`) --------------------------------------------------------------------

    def send(self, worker: int, message: ToWorker) -> None:
        """Send to a worker."""
        if isinstance(message, EpochDone):
            message = self._recorder.end_epoch(message)
        if worker in self._channels:
            self._channels[worker].send(message)

    def apply(self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int]) -> None:
        """One optimizer step on every shard."""
        rows = zip(tickets, weights, staleness, strict=True)
        contributions = tuple(WeightedGradient(t.worker, t.number, weight, stale) for t, weight, stale in rows)
        linear = self.settings.lr_convention == "linear"
        settings = [self._settings.pop((t.worker, t.number), ()) for t in tickets][-1]
        self.shards.apply(Apply(contributions, len(tickets) / self.settings.workers if linear else 1.0, settings))

    def drop(self, tickets: Sequence[Ticket]) -> None:
        """Forget these gradients."""
        if tickets:
            self.shards.drop(Drop(tuple((t.worker, t.number) for t in tickets)))
            for ticket in tickets:
                self._settings.pop((ticket.worker, ticket.number), None)

    def cut(self, reason: str, after: int = 0) -> None:
        """Tell every worker, on the connection that it reads at all times."""
        for channel in self._heartbeat_channels.values():
            channel.send(Cut(self.coordinator.phase, reason, after))

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster) -> None:
        """Open the phase's trace; the job's clock starts with the first phase, when all workers are ready."""
        log.info("phase %d: policy %s on %d workers", number, policy.spec, cluster.workers)
        if number == 1:
            self._started_s = time.monotonic()
        self._recorder.begin_phase(number, policy, cluster, self.shards.service.message_bytes)

    def wake(self, time_s: float) -> None:
        """Call back at a time of the job's clock."""
        self.loop.call_at(self._started_s + time_s, self.coordinator.alarm)

    # -- what workers do -----------------------------------------------------------------------------------------------

    def received(self, worker: int, message: Any) -> None:
        """A worker's message."""
        channel = self._channels[worker]
        if type(message) in FOR_SHARD:
            self.shards.service.received(worker, channel, message)
        elif isinstance(message, Pushed):
            self._match_push(worker, message)
        else:
            self._steer(worker, message)

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A worker's connection has ended, or it hangs."""
        self._heartbeats.pop(worker, None)
        for channel in (self._channels.pop(worker, None), self._heartbeat_channels.pop(worker, None)):
            if channel is not None:
                channel.close()
        was_member = worker in self.coordinator.job.members
        self.coordinator.lost(worker, reason)
        if was_member:
            self._recorder.lost(worker)
        self.shards.forget(worker)
        self._pushed = {key: message for key, message in self._pushed.items() if key[0] != worker}
        self._complete = {key for key in self._complete if key[0] != worker}
        self._end_if_empty()

    def absent(self, worker: int) -> None:
        """Whoever has started this rank says that it will not come."""
        self.coordinator.absent(worker)
        self._end_if_empty()

    def heartbeat(self, worker: int) -> None:
        """A worker's process is running."""
        self._heartbeats[worker] = self.loop.clock()

    def status(self) -> Status:
        """How the job is."""
        job, coordinator = self.coordinator.job, self.coordinator
        following = coordinator.next_policy
        return Status(
            coordinator.policy.spec,
            coordinator.phase,
            job.epoch,
            job.present,
            job.samples,
            job.skipped_samples,
            job.version,
            job.ledger.applied,
            {str(reason): count for reason, count in job.ledger.dropped.items()},
            following.spec if following else None,
            self._recorder.stragglers.arrivals(),
        )

    # -- details -------------------------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self._started_s

    def _open_acceptors(self, listeners: Sequence[socket.socket]) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Hello | ToShard | ToCoordinator | Heartbeat | Add | AskStatus | Absent
        )
        for sock in listeners:
            Acceptor(self.loop, sock, self.settings.job, self.settings.token, decoder, self._admit)

    def _start_shards(self) -> tuple[tuple[str, ...], ...]:
        """Addresses of the shards in processes of their own: here, then where workers of other hosts reach them."""
        processes = []
        hosts = [address.rpartition(":")[0] for address in self.settings.listen]
        for index in range(1, self.settings.shards):
            settings = ShardSettings(
                self.settings.job, self.settings.token, index, self.settings.shards, self.settings.compensation
            )
            here = f"unix:@polyrhythm-{self.settings.job}-shard-{index}"
            process = ShardProcess(settings, here, *(f"{host}:0" for host in hosts))
            process.join(self.loop, settings, self.shards, self._shard_lost)
            processes.append(process.addresses)
        return tuple(zip(*processes, strict=True))

    def _admit(
        self, channel: Channel, hello: Hello
    ) -> "WorkerAcceptor | HeartbeatAcceptor | ControlAcceptor | SumAcceptor":
        if hello.role == "heartbeat":
            return self._admit_heartbeat(channel, hello.rank)
        if hello.role == "control":
            return ControlAcceptor(self, channel)
        if hello.role == "sums":
            return SumAcceptor(self.shards.sums, channel)
        self.coordinator.connect(hello.rank)
        self._channels[hello.rank] = channel
        here = (
            "127.0.0.1" if channel.local else str(channel.socket.getsockname()[0])
        )  # where it has reached the coordinator
        store = here, self._store.port
        shards = self._addresses[0 if channel.local else 1] if self._addresses else ()
        settings = self.settings
        averaging = settings.averaging, settings.averaged_state, settings.delta_rate
        watching = settings.on_divergence, settings.divergence
        info = JobInfo(
            shards, store, settings.heartbeat_s, settings.compress, *averaging, settings.full_duplex, *watching
        )
        self.loop.call_later(0.0, lambda: channel.send(info))
        return WorkerAcceptor(self, hello.rank)

    def _admit_heartbeat(self, channel: Channel, worker: int) -> "HeartbeatAcceptor":
        if worker not in self._channels or worker in self._heartbeat_channels:
            raise PolyrhythmError(f"rank {worker} is not part of this job, or its heartbeat is here already")
        self._heartbeat_channels[worker] = channel
        self.heartbeat(worker)
        return HeartbeatAcceptor(self, worker)

    def _match_push(self, worker: int, message: Pushed) -> None:
        """A push counts when its scalars are here and its gradient is at every shard."""
        key = worker, message.number
        if key in self._complete:
            self._complete.discard(key)
            self._deliver(worker, message)
        else:
            self._pushed[key] = message

    def _arrived(self, worker: int, number: int) -> None:
        message = self._pushed.pop((worker, number), None)
        if message is None:
            self._complete.add((worker, number))
        else:
            self._deliver(worker, message)

    def _deliver(self, worker: int, message: Pushed) -> None:
        self._settings[worker, message.number] = message.settings
        self._steer(worker, message)

    def _steer(self, worker: int, message: ToCoordinator) -> None:
        try:
            self.coordinator.receive(worker, message)
        except PolicyError as error:
            self._fail(f"the policy {self.coordinator.policy.spec} broke its contract: {error}")

    def _fail(self, reason: str) -> None:
        """The job cannot go on for anyone."""
        log.error("%s", reason)
        for channel in self._channels.values():
            channel.send(Rejected(reason))
        self.loop.stop()

    def _look_for_hangs(self) -> None:
        now = self.loop.clock()
        if now - self._looked_s > 2 * self.settings.heartbeat_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heartbeats = dict.fromkeys(self._heartbeats, now)
        for worker, heartbeat in list(self._heartbeats.items()):
            if heartbeat < now - self.settings.hang_s:
                self._remove(worker)
        self._looked_s = now
        self.loop.call_later(self.settings.heartbeat_s, self._look_for_hangs)

    def _remove(self, worker: int) -> None:
        """A worker hangs: the others go on without it, and on this host its process is ended."""
        reason = f"rank {worker} has not answered for {self.settings.hang_s:g} s"
        log.warning("%s; going on without it", reason)
        channel = self._channels[worker]
        channel.send(Refused(f"{reason}, and the others have gone on; see --hang-after"))
        pid = peer_pid(channel.socket)
        self.lost(worker, "hung")
        if pid:
            os.kill(pid, signal.SIGKILL)

    def _end_if_empty(self) -> None:
        """End behind the last worker; if others were to come, give them some time."""
        if self._channels:
            return
        if self.coordinator.awaits and self.coordinator.job.epoch < 0:
            self.loop.call_later(LATECOMERS_S, self._give_up_waiting)
        else:
            self.loop.stop()

    def _give_up_waiting(self) -> None:
        if not self._channels and self.coordinator.job.epoch < 0:
            log.error("job %s has no workers, and none has joined for long; it ends", self.settings.job)
            self.loop.stop()

    def _shard_lost(self, reason: str) -> None:
        """A part of the parameters is gone, and with it the job."""
        self._fail(f"a parameter server is gone: {reason}")


class WorkerAcceptor:
    """Handler of a worker's connection."""

    def __init__(self, server: CoordinatorServer, worker: int) -> None:
        self._server = server
        self._worker = worker

    def received(self, message: Any) -> None:
        """Everything goes to the coordinator."""
        self._server.received(self._worker, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        """Gradients and uploads go to shard 0."""
        return self._server.shards.service.destination(self._worker, message, payload)

    def lost(self, reason: str) -> None:
        """End of file is a death; one that has said goodbye is not known to the coordinator any more."""
        log.debug("rank %d: %s", self._worker, reason)
        self._server.lost(self._worker, "died")


class HeartbeatAcceptor:
    """Handler of a worker's second connection, on which it only shows that it runs."""

    def __init__(self, server: CoordinatorServer, worker: int) -> None:
        self._server = server
        self._worker = worker

    def received(self, message: Any) -> None:
        """A beat."""
        if not isinstance(message, Heartbeat):
            raise FrameError(f"the heartbeat of rank {self._worker} sent {type(message).__name__}")
        self._server.heartbeat(self._worker)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        """A heartbeat has no numbers."""
        raise FrameError(f"the heartbeat of rank {self._worker} announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """The worker's own connection tells of its end."""


class ControlAcceptor:
    """Handler of a connection from outside the job, such as that of ``polyrhythm ctl``."""

    def __init__(self, server: CoordinatorServer, channel: Channel) -> None:
        self._server = server
        self._channel = channel

    def received(self, message: Any) -> None:
        """Steer or ask; the answer is always the status."""
        if isinstance(message, SwitchTo):
            try:
                self._server.coordinator.switch(parse(message.policy))
            except PolyrhythmError as error:
                self._channel.send(Rejected(str(error)))
                return
        elif isinstance(message, Absent):
            self._server.absent(message.rank)
        elif not isinstance(message, AskStatus):
            raise FrameError(f"a controller sent {type(message).__name__}")
        self._channel.send(self._server.status())

    def destination(self, message: Any, payload: Payload) -> memoryview:
        """Controllers send no numbers."""
        raise FrameError(f"a controller announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """It may come and go."""


def serve(settings: JobConfig, listeners: Sequence[socket.socket]) -> None:
    """Body of a coordinator process; it returns behind the last worker."""
    logging.basicConfig(level=logging.INFO, format="polyrhythm coordinator: %(message)s")
    torch.set_num_threads(1)
    server = CoordinatorServer(settings, *listeners)
    warm_up()
    server.run()


if __name__ == "__main__":  # descriptors of the doors; settings come on standard input
    made = msgspec.json.decode(sys.stdin.buffer.read(), type=JobConfig)
    serve(made, [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]])
