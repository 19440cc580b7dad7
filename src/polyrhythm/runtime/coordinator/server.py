"""The process that holds a job together: the coordinator, shard 0 and the meeting point in one readiness loop.

It ends when the last worker has left, or if none comes. Workers reach it over a Unix socket named after the job, and
over TCP if it is told to listen there.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from polyrhythm.core import Cluster, LeftReason, Policy, Ticket
from polyrhythm.errors import PolicyError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.returned import AskState, JobState, Returned
from polyrhythm.runtime.checkpoint.service import JobCheckpoints
from polyrhythm.runtime.coordinator.connections import ControlAcceptor, WorkerAcceptor, open_store, require
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.heartbeats import HeartbeatConnection, Heartbeats
from polyrhythm.runtime.coordinator.monitor import JobMonitor, job_status
from polyrhythm.runtime.coordinator.pushes import PushMatcher
from polyrhythm.runtime.coordinator.recorder import JobRecorder, policy_figures
from polyrhythm.runtime.coordinator.recovery.service import JobRecovery
from polyrhythm.runtime.coordinator.stages import SwitchAnswer, nobody, read_policy
from polyrhythm.runtime.server.server_reduce import SumAcceptor
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.config_sources import Completion
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.control_protocol import Status, ToControlled
from polyrhythm.runtime.wire.credentials import make_token, peer_pid
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import Acceptor
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import (
    Confirmed,
    Cut,
    Ended,
    EpochDone,
    Heartbeat,
    JobInfo,
    NonFiniteLoss,
    Propose,
    ToCoordinator,
    ToWorker,
)
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.shard_protocol import (
    Add,
    Apply,
    Broken,
    Drop,
    GroupSettings,
    Hello,
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

    def __init__(self, config: JobConfig, *listeners: socket.socket, memory: RecoveryMemory | None = None) -> None:
        self._recovery = JobRecovery(memory)
        config = self._recovery.config(config)
        self.config = config = config if config.token else msgspec.structs.replace(config, token=make_token())
        self.loop, self._heartbeats = Loop(), Heartbeats(self._answered)
        self.coordinator = Coordinator(parse_policy(config.policy), config.workers, self, self.elapsed, config.epochs)
        self.pushes = PushMatcher(self.hear)
        self.shards = ShardGroup(config.shards, self.pushes.arrived, config.compensation)
        self.started_s, self._looked_s = time.monotonic(), self.loop.clock()
        self._ended, self._ending, self.broken = "finished", False, False
        self.monitor = JobMonitor(self.elapsed, self._recovery.first_event)
        self._controllers: list[Channel] = []
        self._channels: dict[int, Channel] = {}
        self._completion = Completion(config, log.warning)
        self._checkpoints = JobCheckpoints(self.loop, self.coordinator, self.act)
        self.keep = self._checkpoints.keep
        self._configure()
        self.started_s = self._recovery.open(self)
        if self._recovery.goes_on:
            self._recorder.mend(self.coordinator.phase)
            self._checkpoints.go_on(config)
        self._store = open_store(config.listen)
        self._addresses = self.shards.start_processes(config, self.loop, self._shard_lost)
        self._open_acceptors(listeners)
        self.loop.call_later(config.patience_s, self._give_up_waiting)
        self.loop.call_later(config.heartbeat_s, self._look_for_hangs)

    def _configure(self) -> None:
        self.coordinator.job.runs_policy_files = self.config.allow_policy_files
        self._recorder: JobRecorder = JobRecorder(self.config, self.coordinator.job, self.monitor)
        self.record, self.remark = self._recorder.record, self._recorder.remark
        self._checkpoints.open(self.config)

    def run(self) -> None:
        try:
            self.loop.run()
        finally:
            self._ending = True
            self._recorder.close(policy_figures(self.coordinator))
            self._say_last()
            self._heartbeats.stop()
            self._checkpoints.close()
            self.loop.close()

    # -- what the coordinator asks (see `Effects`) --------------------------------------------------------------------

    def send(self, worker: int, message: ToWorker | JobState) -> None:
        if isinstance(message, EpochDone):
            message = self._recorder.end_epoch(message)
        elif isinstance(message, Ended):
            self._ended = message.reason
            self.monitor.diverged(message.reason)
        if worker in self._channels:
            self._channels[worker].send(message)

    def apply(
        self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int], settings: GroupSettings
    ) -> None:
        rows = zip(tickets, weights, staleness, strict=True)
        contributions = tuple(WeightedGradient(t.worker, t.number, weight, stale) for t, weight, stale in rows)
        linear = self.config.lr_convention == "linear"
        self.shards.apply(Apply(contributions, len(tickets) / self.config.workers if linear else 1.0, settings))
        self._recovery.count(self.coordinator.job.samples)

    def drop(self, tickets: Sequence[Ticket]) -> None:
        if tickets:
            self.shards.drop(Drop(tuple((t.worker, t.number) for t in tickets)))
        for ticket in tickets:
            self.pushes.drop(ticket.worker, ticket.number)

    def cut(self, reason: str, after: int = 0) -> None:
        """Tell every worker, on the connection that it reads at all times."""
        self._heartbeats.tell(Cut(self.coordinator.phase, reason, after))

    def tell_loss(self, worker: int, reason: LeftReason) -> None:
        self.monitor.lost(worker, reason)

    def propose(self, number: int, policy: str) -> None:
        self._heartbeats.tell(Propose(number, policy))

    def give_up(self, reason: str) -> None:
        self._fail(Rejected(reason))

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, state: str = "") -> None:
        """Open the phase's trace; the job's clock starts with the first phase, when all workers are ready."""
        log.info("phase %d: policy %s on %d workers", number, policy.spec, cluster.workers)
        if number == 1:
            self.started_s = time.monotonic()
        self._recorder.begin_phase(number, policy, cluster, self.shards.service.message_bytes, state)
        self.monitor.begin_phase(number, policy, cluster.workers, self.coordinator.job.trouble)

    def wake(self, time_s: float) -> None:
        self.loop.call_at(self.started_s + time_s, lambda: self.act(self.coordinator.alarm))

    # -- what workers do -----------------------------------------------------------------------------------------------

    def hear(self, worker: int, message: ToCoordinator) -> None:
        if self._recovery.heard(worker, message):
            return
        if isinstance(message, NonFiniteLoss):
            self._recorder.not_finite(worker, message)
        else:
            self.act(self.coordinator.receive, worker, message)

    def elapsed(self) -> float:
        return time.monotonic() - self.started_s

    def there(self, worker: int) -> bool:
        return worker in self._channels or worker in self._heartbeats

    def lost(self, worker: int, reason: LeftReason) -> None:
        self._heartbeats.forget(worker)
        channel = self._channels.pop(worker, None)
        if channel is not None:
            channel.close()
        was_member = worker in self.coordinator.job.members
        if not self._recovery.lost(worker):
            self.act(self.coordinator.lost, worker, reason)
        if was_member:
            self._recorder.lost(worker)
        self._checkpoints.lost(worker)
        self.shards.forget(worker)
        self.pushes.forget(worker)
        self.end_if_empty()

    def absent(self, worker: int) -> None:
        if not self.there(worker) and self._recovery.lost(worker):
            return
        self.act(self.coordinator.absent, worker)
        self.end_if_empty()

    def switch(self, spec: str, tell: SwitchAnswer, by: str = "") -> None:
        """Somebody outside the job wants another policy.

        Raises:
            UsageError: for one that cannot run here, or would have to be loaded where that is not allowed.
        """
        policy = read_policy(spec, files=self.coordinator.job.runs_policy_files)
        self._asked(f"to switch to {policy.spec}", by)
        self.act(self.coordinator.choice.propose, policy, tell)

    def _answered(self, worker: int, message: Confirmed | Heartbeat | Saved) -> None:
        if isinstance(message, Confirmed):
            self.loop.call_from_thread(partial(self.act, self.coordinator.choice.confirmed, worker, message))
        elif isinstance(message, Saved):
            self._checkpoints.saved(message)
        else:
            self.loop.call_from_thread(partial(self.monitor.heard, worker, message))

    def remove(self, worker: int, by: str) -> None:
        """Somebody outside the job wants it to go on without a worker.

        Raises:
            UsageError: if there is none of this rank.
        """
        require(worker, self._channels)
        self._asked(f"to remove rank {worker}", by)
        self._remove(worker, f"rank {worker} was removed by {by or 'a controller'}", "died")

    def drain(self, worker: int, by: str) -> None:
        """Somebody outside the job wants a worker to finish its step and leave.

        Raises:
            UsageError: if there is none of this rank.
        """
        require(worker, self._channels)
        if worker not in self._heartbeats:
            raise UsageError(f"rank {worker} is just joining; ask again in a second")
        self._asked(f"to drain rank {worker}", by)
        self.monitor.leaving.add(worker)
        self._heartbeats.ask_to_leave(worker)

    def end(self, by: str) -> None:
        """Somebody outside the job wants it to end."""
        self._asked("to end the job", by)
        self._fail(Rejected(f"job {self.config.job} was ended by {by or 'a controller'}"))

    def status(self, after: int = 0, ended: str = "") -> Status:
        stragglers = self._recorder.stragglers
        silent_s = {rank: self._heartbeats.silent_s(rank) for rank in sorted(self._channels)}
        workers = self.monitor.workers(self.coordinator.job, stragglers, silent_s)
        return job_status(self.config, self.coordinator, stragglers, self.monitor, workers, after, ended)

    # -- details -------------------------------------------------------------------------------------------------------

    def _open_acceptors(self, listeners: Sequence[socket.socket]) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            ToShard | ToCoordinator | AskState | Returned | Heartbeat | Confirmed | Saved | Add | ToControlled
        )
        for sock in listeners:
            Acceptor(self.loop, sock, self.config.job, self.config.token, decoder, self._admit)

    def _admit(
        self, channel: Channel, hello: Hello
    ) -> "WorkerAcceptor | HeartbeatConnection | ControlAcceptor | SumAcceptor":
        if hello.role == "control":
            self._controllers = [*(each for each in self._controllers if not each.closed), channel]
            return ControlAcceptor(self, channel)
        if hello.role == "worker":
            return self._admit_worker(channel, hello)
        if hello.role == "coordinator":
            raise UsageError("this is the coordinator")
        if hello.rank not in self._channels and not self._recovery.follows:  # else it may be first to come back
            raise UsageError(f"rank {hello.rank} is not part of this job")
        if hello.role == "sums":
            return SumAcceptor(self.shards.sums, channel)
        if hello.rank in self._heartbeats:
            raise UsageError(f"the heartbeat of rank {hello.rank} is here already")
        return self._heartbeats.expect(hello.rank, channel, self.loop)

    def _admit_worker(self, channel: Channel, hello: Hello) -> WorkerAcceptor:
        if not self._recovery.goes_on and self._completion.heed(hello.rank, hello.arguments):
            self._adopt(self._completion.config)
        self._checkpoints.require()
        if not self._recovery.awaits(hello.rank) or hello.rank in self._channels:
            self.coordinator.connect(hello.rank)
        self._channels[hello.rank] = channel
        self.monitor.joined(hello.rank, channel)
        # on another host, where it has reached the coordinator
        here = self._store.host if channel.local else str(channel.socket.getsockname()[0])
        shards = self._addresses[0 if channel.local else 1] if self._addresses else ()
        also = *self._checkpoints.for_newcomer, self._recovery.promise(self.config)
        info = JobInfo(shards, (here, self._store.port), self.config.public, *also)
        self.loop.call_later(0.0, lambda: channel.send(info))
        return WorkerAcceptor(self, hello.rank, channel)

    def _adopt(self, config: JobConfig) -> None:
        """The job's config is complete, before its first worker is connected."""
        self.config = config
        self._configure()
        asked = self.coordinator.next_policy
        self.coordinator.plan(parse_policy(config.policy), config.epochs)
        self._checkpoints.resume(config)
        if asked is not None:  # somebody was quicker than the first worker
            self.coordinator.choice.propose(asked, nobody)

    def act(self, act: Callable[..., None], *given: Any) -> None:
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
        self._ended = message.reason
        for channel in self._channels.values():
            channel.send(message)
        self.loop.stop()

    def _asked(self, what: str, by: str) -> None:
        if by:
            log.info("%s asks %s", by, what)
            self.monitor.tell("control", f"{by} asks {what}")

    def _say_last(self) -> None:
        """Whoever watches the job hears how it ended."""
        self.monitor.tell("end", self._ended)
        for channel in self._controllers:
            channel.send(self.status(ended=self._ended))

    def _look_for_hangs(self) -> None:
        now = self.loop.clock()
        if now - self._looked_s > 2 * self.config.heartbeat_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heartbeats.forgive()
        for worker in self._heartbeats.silent_since(now - self.config.hang_after):
            reason = f"rank {worker} has not answered for {self.config.hang_after:g} s"
            self._remove(worker, reason, "hung", "; see --hang-after")
        self._looked_s = now
        self.loop.call_later(self.config.heartbeat_s, self._look_for_hangs)

    def _remove(self, worker: int, why: str, reason: LeftReason, hint: str = "") -> None:
        """The others go on without a worker: on this host its process is ended, on another one it is told."""
        log.warning("%s; going on without it", why)
        channel = self._channels.get(worker)  # none if its heartbeat alone has met this coordinator
        if channel is None:
            pass
        elif pid := peer_pid(channel.socket):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # before its connections close, which it would take for our end
        else:
            channel.send(Rejected(f"{why}, and the others have gone on{hint}"))
        self.lost(worker, reason)

    def end_within(self, grace_s: float) -> None:
        """From a signal's handler: end when the last worker has left, or when the time is over."""
        if self._ending:
            return
        self._ending = True
        self.loop.call_later(grace_s if self._channels else 0.0, self.loop.stop)
        self.loop.wake()

    def end_if_empty(self) -> None:
        """The job is over with its last worker."""
        if self._channels or self._recovery.waits:
            return
        if not self._ending and self.coordinator.job.awaited and self.coordinator.job.epoch < 0:
            self.loop.call_later(LATECOMERS_S, self._give_up_waiting)
        else:
            self.loop.stop()

    def _give_up_waiting(self) -> None:
        if not self._channels and self.coordinator.job.epoch < 0:
            log.error("job %s has no workers, and none has joined for long; it ends", self.config.job)
            self.loop.stop()

    def _shard_lost(self, reason: str) -> None:
        self._fail(Rejected(f"a parameter server is gone: {reason}"))
