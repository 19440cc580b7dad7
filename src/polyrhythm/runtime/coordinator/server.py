"""The process that holds a job together: the coordinator, shard 0 and the meeting point in one readiness loop.

It ends when the last worker has left, or if none comes. Workers reach it over a Unix socket named after the job, and
over TCP if it is told to listen there.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import Cluster, LeftReason, Policy, Ticket
from polyrhythm.errors import BROKEN, PolicyError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.connections import ControlAcceptor, HeartbeatAcceptor, WorkerAcceptor
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.recorder import JobRecorder
from polyrhythm.runtime.server.server_reduce import SumAcceptor
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.server.shard_group import ShardGroup, ShardProcess, ShardSettings
from polyrhythm.runtime.wire.config_sources import Completion
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop
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
    Status,
    ToCoordinator,
    ToWorker,
)
from polyrhythm.runtime.wire.shard_protocol import (
    FOR_SHARD,
    Add,
    Apply,
    Broken,
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
        config: of the job; completed by the arguments of the first worker's session.
        listeners: bound to `coordinator_address`, so that a second job of the same id has failed before, and to
            `listen`.

    Raises:
        UsageError: for a policy that cannot be read, or an address that cannot be listened on.
    """

    def __init__(self, config: JobConfig, *listeners: socket.socket) -> None:
        self.config, self.loop = config, Loop()
        self.coordinator = Coordinator(parse_policy(config.policy), config.workers, self, self._elapsed, config.epochs)
        self.shards = ShardGroup(config.shards, self._arrived, config.compensation)
        self._started_s, self._looked_s = time.monotonic(), self.loop.clock()
        self.broken = False
        """Whether the job has ended because of its policy."""
        self._channels: dict[int, Channel] = {}
        self._heartbeat_channels: dict[int, Channel] = {}
        self._heartbeats: dict[int, float] = {}
        self._pushed: dict[tuple[int, int], Pushed] = {}
        self._complete: set[tuple[int, int]] = set()
        self._settings: dict[tuple[int, int], tuple[dict[str, Hyperparameter], ...]] = {}
        self._completion = Completion(config, log.warning)
        self._measure()
        self._store = TCPStore("0.0.0.0" if config.listen else "127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._addresses = self._start_shards()
        self._open_acceptors(listeners)
        self.loop.call_later(config.patience_s, self._give_up_waiting)
        self.loop.call_later(config.heartbeat_s, self._look_for_hangs)

    def _measure(self) -> None:
        self._recorder = JobRecorder(self.config, self.coordinator.job)
        self.record = self._recorder.record

    def run(self) -> None:
        try:
            self.loop.run()
        finally:
            self._recorder.close(self._policy_figures())
            self.loop.close()

    # -- what the coordinator asks (see `Effects`) --------------------------------------------------------------------

    def send(self, worker: int, message: ToWorker) -> None:
        if isinstance(message, EpochDone):
            message = self._recorder.end_epoch(message)
        if worker in self._channels:
            self._channels[worker].send(message)

    def apply(self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int]) -> None:
        rows = zip(tickets, weights, staleness, strict=True)
        contributions = tuple(WeightedGradient(t.worker, t.number, weight, stale) for t, weight, stale in rows)
        linear = self.config.lr_convention == "linear"
        settings = [self._settings.pop((t.worker, t.number), ()) for t in tickets][-1]
        self.shards.apply(Apply(contributions, len(tickets) / self.config.workers if linear else 1.0, settings))

    def drop(self, tickets: Sequence[Ticket]) -> None:
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
        self.loop.call_at(self._started_s + time_s, lambda: self._coordinate(self.coordinator.alarm))

    # -- what workers do -----------------------------------------------------------------------------------------------

    def received(self, worker: int, message: Any) -> None:
        channel = self._channels[worker]
        if type(message) in FOR_SHARD:
            self.shards.service.received(worker, channel, message)
        elif isinstance(message, Pushed):
            self._match_push(worker, message)
        elif isinstance(message, Broken):
            self._break_off(message.reason)
        else:
            self._coordinate(self.coordinator.receive, worker, message)

    def lost(self, worker: int, reason: LeftReason) -> None:
        self._heartbeats.pop(worker, None)
        for channel in (self._channels.pop(worker, None), self._heartbeat_channels.pop(worker, None)):
            if channel is not None:
                channel.close()
        was_member = worker in self.coordinator.job.members
        self._coordinate(self.coordinator.lost, worker, reason)
        if was_member:
            self._recorder.lost(worker)
        self.shards.forget(worker)
        self._pushed = {key: message for key, message in self._pushed.items() if key[0] != worker}
        self._complete = {key for key in self._complete if key[0] != worker}
        self._end_if_empty()

    def absent(self, worker: int) -> None:
        self._coordinate(self.coordinator.absent, worker)
        self._end_if_empty()

    def switch(self, policy: Policy[Any]) -> None:
        """Somebody outside the job wants another policy."""
        self._coordinate(self.coordinator.switch, policy)

    def heartbeat(self, worker: int) -> None:
        self._heartbeats[worker] = self.loop.clock()

    def status(self) -> Status:
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
            Hello | ToShard | ToCoordinator | Broken | Heartbeat | Add | AskStatus | Absent
        )
        for sock in listeners:
            Acceptor(self.loop, sock, self.config.job, self.config.token, decoder, self._admit)

    def _start_shards(self) -> tuple[tuple[str, ...], ...]:
        """Addresses of the shards in processes of their own: here, then where workers of other hosts reach them."""
        processes, config = [], self.config
        hosts = [address.rpartition(":")[0] for address in config.listen]
        for index in range(1, config.shards):
            settings = ShardSettings(config.job, config.token, index, config.shards, config.compensation)
            here = f"unix:@polyrhythm-{config.job}-shard-{index}"
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
        if self._completion.heed(hello.rank, hello.arguments):
            self._adopt(self._completion.config)
        self.coordinator.connect(hello.rank)
        self._channels[hello.rank] = channel
        here = (
            "127.0.0.1" if channel.local else str(channel.socket.getsockname()[0])
        )  # where it has reached the coordinator
        shards = self._addresses[0 if channel.local else 1] if self._addresses else ()
        info = JobInfo(shards, (here, self._store.port), self.config.public)
        self.loop.call_later(0.0, lambda: channel.send(info))
        return WorkerAcceptor(self, hello.rank)

    def _adopt(self, config: JobConfig) -> None:
        """The job's config is complete, before its first worker is connected."""
        self.config = config
        self._measure()
        self.coordinator.plan(parse_policy(config.policy), config.epochs)

    def _admit_heartbeat(self, channel: Channel, worker: int) -> "HeartbeatAcceptor":
        if worker not in self._channels or worker in self._heartbeat_channels:
            raise UsageError(f"rank {worker} is not part of this job, or its heartbeat is here already")
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
        self._coordinate(self.coordinator.receive, worker, message)

    def _coordinate(self, act: Callable[..., None], *given: Any) -> None:
        """Have the coordinator act; whatever it does may show that the policy is wrong."""
        if self.broken:
            return
        try:
            act(*given)
        except PolicyError as error:
            self._break_off(str(error))

    def _break_off(self, reason: str) -> None:
        """The job ends because of its policy. It is said once, here: several ranks may find it out, too."""
        if not self.broken:
            self.broken = True
            self._fail(Broken(reason))

    def _fail(self, message: Broken | Rejected) -> None:
        log.error("%s", message.reason)
        for channel in self._channels.values():
            channel.send(message)
        self.loop.stop()

    def _policy_figures(self) -> dict[str, float]:
        try:
            return self.coordinator.figures
        except PolicyError as error:
            log.error("%s", error)  # noqa: TRY400 (one line for the user)
            return {}

    def _look_for_hangs(self) -> None:
        now = self.loop.clock()
        if now - self._looked_s > 2 * self.config.heartbeat_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heartbeats = dict.fromkeys(self._heartbeats, now)
        for worker, heartbeat in list(self._heartbeats.items()):
            if heartbeat < now - self.config.hang_after:
                self._remove(worker)
        self._looked_s = now
        self.loop.call_later(self.config.heartbeat_s, self._look_for_hangs)

    def _remove(self, worker: int) -> None:
        """A worker hangs: the others go on without it, and on this host its process is ended."""
        reason = f"rank {worker} has not answered for {self.config.hang_after:g} s"
        log.warning("%s; going on without it", reason)
        channel = self._channels[worker]
        channel.send(Rejected(f"{reason}, and the others have gone on; see --hang-after"))
        pid = peer_pid(channel.socket)
        self.lost(worker, "hung")
        if pid:
            os.kill(pid, signal.SIGKILL)

    def _end_if_empty(self) -> None:
        if self._channels:
            return
        if self.coordinator.awaits and self.coordinator.job.epoch < 0:
            self.loop.call_later(LATECOMERS_S, self._give_up_waiting)
        else:
            self.loop.stop()

    def _give_up_waiting(self) -> None:
        if not self._channels and self.coordinator.job.epoch < 0:
            log.error("job %s has no workers, and none has joined for long; it ends", self.config.job)
            self.loop.stop()

    def _shard_lost(self, reason: str) -> None:
        self._fail(Rejected(f"a parameter server is gone: {reason}"))


def serve(config: JobConfig, listeners: Sequence[socket.socket]) -> int:
    """Body of a coordinator process; it returns after the last worker, with the exit status."""
    logging.basicConfig(level=logging.INFO, format="polyrhythm coordinator: %(message)s")
    torch.set_num_threads(1)
    server = CoordinatorServer(config, *listeners)
    warm_up()
    server.run()
    return BROKEN if server.broken else 0


if __name__ == "__main__":  # descriptors of the listeners; the config comes on standard input
    made = msgspec.json.decode(sys.stdin.buffer.read(), type=JobConfig)
    sys.exit(serve(made, [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]))
