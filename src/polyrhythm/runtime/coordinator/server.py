"""The process that holds a job together: the coordinator, shard 0 and the meeting point in one readiness loop.

It ends when the last worker has left, or if none comes. Workers reach it over a Unix socket named after the job, and
over TCP if it is told to listen there. What a worker sends goes to the shard or to the coordinator; what is observed of
it is written down a little later, when the answer is on its way.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from polyrhythm.core import Cluster, Event, LeftReason, Policy, Ticket
from polyrhythm.errors import FrameError, PolicyError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.returned import AskState, JobState, Returned
from polyrhythm.runtime.checkpoint.service import JobCheckpoints
from polyrhythm.runtime.coordinator.connections import ControlAcceptor, Controllers, LastWord, end_unbegun, open_store
from polyrhythm.runtime.coordinator.heartbeats import HangWatch, HeartbeatConnection, Heartbeats
from polyrhythm.runtime.coordinator.members.proposal import nobody
from polyrhythm.runtime.coordinator.monitor import JobMonitor
from polyrhythm.runtime.coordinator.recorder import JobRecorder, policy_figures
from polyrhythm.runtime.coordinator.recovery.keeper import SERVER_LOST
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.coordinator.recovery.service import JobRecovery
from polyrhythm.runtime.coordinator.recovery.standby_link import StandbyLink
from polyrhythm.runtime.coordinator.worker_acceptor import WorkerAcceptor
from polyrhythm.runtime.server.pushes import PushMatcher
from polyrhythm.runtime.server.server_reduce import SumAcceptor
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.config_sources import Completion, epochs_of_job
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.control_protocol import ToControlled
from polyrhythm.runtime.wire.credentials import end_peer, make_token
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import Acceptor
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import (
    Bye,
    Confirmed,
    Cut,
    Diverged,
    Ended,
    EpochDone,
    Heartbeat,
    JobInfo,
    NonFiniteLoss,
    Propose,
    Pushed,
    TakePart,
    ToCoordinator,
    ToWorker,
)
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.removed import check_not_removed
from polyrhythm.runtime.wire.recovery.standby_protocol import FromStandby
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

Heard: TypeAlias = (
    ToShard | ToCoordinator | AskState | Returned | Heartbeat | Confirmed | Saved | Add | ToControlled | FromStandby
)
"""What a connection may bring."""

BACKLOG_S = 0.05
"""How long what was observed may wait to be written down."""

MOST_BACKLOG = 64
"""What was observed and not yet written down, after which that is done once this turn's answers are on their way."""

LATECOMERS_S = 10.0
"""How long a job without workers waits for those that have not joined yet, once others have been there."""


class CoordinatorServer:
    """The `Effects` of a coordinator, with sockets and shards.

    Args:
        config: of the job; completed by the arguments of the first worker's session.
        listeners: bound to `coordinator_address`, where a second job of the same id has failed before, and to `listen`.

    Raises:
        UsageError: for a policy that cannot be read, or an address that cannot be listened on.
    """

    def __init__(self, config: JobConfig, *listeners: socket.socket, memory: RecoveryMemory | None = None) -> None:
        self._recovery = JobRecovery(memory)
        config = self._recovery.config(config)
        self.config = config = config if config.token else msgspec.structs.replace(config, token=make_token())
        self.loop, self.heartbeats = Loop(), Heartbeats(self._answered)
        planned = parse_policy(config.policy), config.workers
        self.coordinator = RecoverableCoordinator(*planned, self, self.elapsed, config.epochs)
        pushes = PushMatcher(partial(self.act, self.coordinator.receive)) if config.shards > 1 else None
        self.shards = ShardGroup(config.shards, pushes, config.compensation)
        self.started_s = time.monotonic()
        self._ended, self._ending, self._over, self.broken = "", False, False, False
        self.again: set[int] = set()
        """Workers whose scripts have finished a training, and begin another one."""
        self.monitor = JobMonitor(self.elapsed, self._recovery.first_event)
        self._controllers, self._last_word = Controllers(self), LastWord()
        self.channels: dict[int, Channel] = {}
        self._completion = Completion(config, log.warning)
        self.checkpoints = JobCheckpoints(self.loop, self.coordinator, self.act)
        self.keep = self.checkpoints.keep
        self._configure(self._recovery.goes_on)
        self.started_s, self._made = self._recovery.open(self), self._recovery.made
        if self._recovery.goes_on:
            self.recorder.mend(self.coordinator.phase)
            self.checkpoints.go_on(config)
        # Before anything that has threads, as they are forked.
        self._addresses = self.shards.start_processes(
            config, self.loop, self._shard_lost, memory, self._recovery.restored
        )
        self._store = open_store(config.listen)
        self._open_acceptors(listeners)
        self.loop.call_later(config.patience_s, partial(self._give_up_waiting, config.patience_s))
        HangWatch(self.loop, self.heartbeats, lambda: self.config, self.remove).begin()

    def _configure(self, whole: bool) -> None:
        """Follow the config, which is `whole` once a worker has said what its script chooses."""
        job, config = self.coordinator.job, self.config
        job.runs_policy_files, job.epochs_given = config.allow_policy_files, not whole or "epochs" in config.given
        self.recorder: JobRecorder = JobRecorder(config, job, self.monitor, self._recovery.trainings)
        self.remark = self.recorder.remark
        self.checkpoints.open(config, self._recovery.goes_on)

    def run(self) -> None:
        try:
            self.loop.run()
        finally:
            self._ending = self._over = True
            self.recorder.close(policy_figures(self.coordinator))
            self._controllers.say_last("" if self.again else self._ended or self.monitor.outcome)
            self._recovery.close()
            if self.again:
                self._recovery.begin_again(self.again)
            self.heartbeats.stop()
            self.checkpoints.close()
            self.loop.close()

    # -- what the coordinator asks (see `Effects`) --------------------------------------------------------------------

    def send(self, worker: int, message: ToWorker | JobState) -> None:
        if isinstance(message, EpochDone):
            message = self.recorder.end_epoch(message)
        elif isinstance(message, Ended):
            self._ended = message.reason
            self.monitor.diverged(message.reason)
        if worker in self.channels:
            self._recovery.send(self.channels[worker], message)

    def send_all(self, workers: Sequence[int], message: TakePart) -> None:
        self._recovery.send_all([self.channels[worker] for worker in workers if worker in self.channels], message)

    def apply(
        self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int], settings: GroupSettings
    ) -> None:
        rows = zip(tickets, weights, staleness, strict=True)
        contributions = tuple(WeightedGradient(t.worker, t.number, weight, stale) for t, weight, stale in rows)
        linear = self.config.lr_convention == "linear"
        message = Apply(contributions, len(tickets) / self.config.workers if linear else 1.0, settings)
        if self.shards.others:
            self.shards.tell_others(message)
        self.shards.service.apply(message)
        if self._made is not None:
            self._made[0] = self.coordinator.job.samples

    def drop(self, tickets: Sequence[Ticket]) -> None:
        if tickets:
            self.shards.drop(Drop(tuple((t.worker, t.number) for t in tickets)))

    def cut(self, reason: str, after: int = 0) -> None:
        """Tell every worker, on the connection that it reads at all times."""
        self.heartbeats.tell(Cut(self.coordinator.phase, reason, after))

    def tell_loss(self, worker: int, reason: LeftReason) -> None:
        self.monitor.lost(worker, reason)

    def propose(self, number: int, policy: str) -> None:
        self.heartbeats.tell(Propose(number, policy))

    def give_up(self, reason: str) -> None:
        self._fail(Rejected(reason))

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, state: str = "") -> None:
        """Open the phase's trace; the job's clock starts with the first phase, when all workers are ready."""
        log.info("phase %d: policy %s on %d workers", number, policy.spec, cluster.workers)
        if number == 1:
            self.started_s = time.monotonic()
        self.recorder.begin_phase(number, policy, cluster, self.shards.service.message_bytes, state)
        self.monitor.begin_phase(number, policy, cluster.workers, self.coordinator.job.trouble)

    def wake(self, time_s: float) -> None:
        self.loop.call_at(self.started_s + time_s, lambda: self.act(self.coordinator.alarm))

    def record(self, seen: Event | int, what: Any) -> None:
        """Have this written down soon, when no worker waits for it: an event with its decisions, a rank's message."""
        backlog = self.recorder.backlog
        backlog.append((seen, what))
        if len(backlog) == 1:
            self.loop.call_later(BACKLOG_S, self.recorder.catch_up)
        elif len(backlog) == MOST_BACKLOG:
            self.loop.call_later(0.0, self.recorder.catch_up)

    # -- what workers do -----------------------------------------------------------------------------------------------

    def hear(self, worker: int, message: ToCoordinator | AskState | Returned) -> None:
        if isinstance(message, (AskState, Returned)) or self._recovery.returning is not None:
            self._recovery.heard(worker, message)
        elif isinstance(message, NonFiniteLoss):
            self.recorder.not_finite(worker, message)
        else:
            self.act(self._pushed if isinstance(message, Pushed) else self.coordinator.receive, worker, message)
            if isinstance(message, Diverged):
                self._recovery.learned()
            elif isinstance(message, Bye) and message.again and self._recovery.recovers:
                self.heartbeats.forget(worker)  # until the next coordinator hears it
                if not self.again:
                    log.info("rank %d has come to another training; it waits until all have ended this one", worker)
                self.again.add(worker)
                self.end_if_empty()

    def _pushed(self, worker: int, message: Pushed) -> None:
        """The scalars of a push. Of several shards each tells when the gradient is there."""
        held = self.shards.service.pushed(worker, message.number, message.buffer, message.settings)
        if self.shards.pushes is not None:
            self.shards.pushes.told(worker, message)
        elif held or not self.coordinator.job.awaits_step(worker, message.number):
            self.coordinator.receive(worker, message)
        else:
            raise FrameError(f"rank {worker} told of step {message.number} without its gradient")

    def elapsed(self) -> float:
        return time.monotonic() - self.started_s

    def there(self, worker: int) -> bool:
        return worker in self.channels or worker in self.heartbeats

    def lost(self, worker: int, reason: LeftReason) -> None:
        self.heartbeats.forget(worker)
        self.again.discard(worker)
        channel = self.channels.pop(worker, None)
        if channel is not None:
            channel.close()
        was_member = worker in self.coordinator.job.members
        if not self._recovery.lost(worker):
            self.act(self.coordinator.lost, worker, reason)
        if was_member and not self._over:
            self.recorder.lost(worker)
        self.checkpoints.lost(worker)
        self.shards.forget(worker)
        self.end_if_empty()

    def absent(self, worker: int, said: bool = False) -> None:
        if not self.there(worker) and self._recovery.lost(worker):
            return
        self.act(self.coordinator.absent, worker, said)
        self.end_if_empty()

    def _answered(self, worker: int, message: Confirmed | Heartbeat | Saved) -> None:
        if isinstance(message, Confirmed):
            self.loop.call_from_thread(partial(self.act, self.coordinator.choice.confirmed, worker, message))
        elif isinstance(message, Saved):
            self.checkpoints.saved(worker, message)
        else:
            self.loop.call_from_thread(partial(self.record, worker, message))

    # -- details -------------------------------------------------------------------------------------------------------

    def _open_acceptors(self, listeners: Sequence[socket.socket]) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Heard)
        for sock in listeners:
            whose = self.config.job, self.config.token, decoder
            Acceptor(self.loop, sock, *whose, self._admit, partial(end_unbegun, self))

    def _admit(
        self, channel: Channel, hello: Hello
    ) -> WorkerAcceptor | HeartbeatConnection | ControlAcceptor | SumAcceptor | StandbyLink:
        if hello.role == "control":
            return self._controllers.admit(channel)
        if hello.role == "worker":
            return self._admit_worker(channel, hello)
        if hello.role == "standby":
            return self._recovery.admit(channel)
        if hello.role == "coordinator":
            raise UsageError("this is the coordinator")
        if hello.rank not in self.channels and not self._recovery.follows:  # else it may be first to come back
            raise UsageError(f"rank {hello.rank} is not part of this job")
        if hello.role == "sums":
            return SumAcceptor(self.shards.sums, channel)
        if hello.rank in self.heartbeats:
            raise UsageError(f"the heartbeat of rank {hello.rank} is here already")
        asks = partial(self.act, self.coordinator.choice.ask_again, hello.rank)
        return self.heartbeats.expect(hello.rank, channel, self.loop, asks)

    def _admit_worker(self, channel: Channel, hello: Hello) -> WorkerAcceptor:
        self._recovery.check_training(hello.trainings)
        check_not_removed(hello.rank)
        said = epochs_of_job(hello.arguments, self.checkpoints.counted_from)
        if not self._recovery.goes_on and self._completion.heed(hello.rank, said):
            self._adopt(self._completion.config)
        self.checkpoints.require()
        if not self._recovery.awaits(hello.rank) or hello.rank in self.channels:
            self.coordinator.job.connect(hello.rank)
        self.channels[hello.rank] = channel
        self.monitor.joined(hello.rank, channel)
        # on another host, where it has reached the coordinator
        here = self._store.host if channel.local else str(channel.socket.getsockname()[0])
        shards = self._addresses[0 if channel.local else 1] if self._addresses else ()
        also = *self.checkpoints.for_newcomer, self._recovery.recovers
        info = JobInfo(shards, (here, self._store.port), self.config.public, *also)
        self.loop.call_later(0.0, lambda: channel.send(info))
        return WorkerAcceptor(self, hello.rank, channel)

    def _adopt(self, config: JobConfig) -> None:
        """The job's config is complete, before its first worker is connected."""
        self.config = config
        self._configure(whole=True)
        asked = self.coordinator.next_policy
        self.coordinator.plan(parse_policy(config.policy), config.epochs)
        self.checkpoints.resume(config)
        if asked is not None:  # somebody was quicker than the first worker
            self.coordinator.choice.propose(asked, nobody)

    def act(self, act: Callable[..., None], *given: Any) -> None:
        """Have the coordinator act, once it leads the job; whatever it does may show that the policy is wrong."""
        if self.broken or self._over:
            return
        if self._recovery.returning is not None:
            self._recovery.hold(partial(self.act, act, *given))
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
        self._ended = self._last_word.say(message, self.channels.values())
        self.again.clear()
        self.loop.stop()

    def remove(self, worker: int, why: str, reason: LeftReason, hint: str = "") -> None:
        """The others go on without a worker: on this host its process is ended, on another one it is told."""
        log.warning("%s; going on without it", why)
        channel = self.channels.get(worker)  # none if its heartbeat alone has met this coordinator
        if channel is not None and not end_peer(channel.socket):
            channel.send(Rejected(f"{why}, and the others have gone on{hint}"))
        self.lost(worker, reason)

    def end_within(self, grace_s: float) -> None:
        """From a signal's handler: end when the last worker has left, or when the time is over."""
        if self._ending:
            return
        self._ending = True
        self.loop.call_later(grace_s if self.channels else 0.0, self.loop.stop)
        self.loop.wake()

    def end_if_empty(self) -> None:
        """The job is over with its last worker, or its training."""
        if self.channels.keys() - self.again or self._recovery.returning is not None:
            return
        if not self._ending and self.coordinator.job.awaited and self.coordinator.job.epoch < 0:
            self.loop.call_later(LATECOMERS_S, partial(self._give_up_waiting, LATECOMERS_S))
        else:
            self.loop.stop()

    def _give_up_waiting(self, waited_s: float) -> None:
        if not self.channels and self.coordinator.job.epoch < 0:
            log.error("job %s has no workers, and none has joined within %g s; it ends", self.config.job, waited_s)
            self.loop.stop()

    def _shard_lost(self, reason: str) -> None:
        """All of them go back to the same moment, so the next coordinator starts them all again."""
        if self._recovery.recovers and not self._ending:
            log.warning("%s", reason)
            os._exit(SERVER_LOST)
        self.give_up(reason)
