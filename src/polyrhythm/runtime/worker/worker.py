"""A worker's side of the job: what it does at the edges of its steps, and what it does when the coordinator speaks.

The loader calls `begin_epoch`, `draw` and `end_epoch`; the optimizer's hooks call `before_step` and `after_step`.
Between them the script computes, and nothing happens here. Messages are followed where the worker has to wait for the
coordinator anyway, and looked at just before a push. What a step is made of depends on the policy: see `StepMode`.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import CoordinatorLostError, DivergedError, GroupError, PolicyError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.saver import ReplicaCheckpoints
from polyrhythm.runtime.wire.protocol import (
    Bye,
    CollectiveFailed,
    Ended,
    Entered,
    EpochDone,
    Phase,
    Ready,
    Refused,
    SwitchTo,
    ToWorker,
)
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import UNREAD
from polyrhythm.runtime.worker.context import DrawnBatch, JobClient, StepMode, Tally, WorkerContext
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.local_steps import mode_on_workers
from polyrhythm.runtime.worker.losses.guard import Guard
from polyrhythm.runtime.worker.losses.reports import LossReports
from polyrhythm.runtime.worker.optimizers import StepSettings
from polyrhythm.runtime.worker.parameter_server import ParameterServerMode
from polyrhythm.runtime.worker.presence.comeback import come_back
from polyrhythm.runtime.worker.presence.position import EpochPosition
from polyrhythm.runtime.worker.presence.state_now import fetch, finish
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.telemetry.stragglers import Lateness

log = logging.getLogger(__name__)


class Worker:
    """Follows the coordinator.

    Args:
        rank: this worker's.
        client: see `JobClient`.
        replica: the script's model and optimizer.
        exchange: the model's side of collectives.
        clock: seconds, for durations only; that of `DDPExchange.launched_s`.
        guard: watches the losses; none: nobody does.
        checkpoints: writes the state when a phase begins with a checkpoint, and goes on from one.
        anyone: whether a process of this worker says so.
    """

    def __init__(
        self,
        rank: int,
        client: JobClient,
        replica: ScriptReplica,
        exchange: DDPExchange,
        clock: Callable[[], float] = time.perf_counter,
        guard: Guard | None = None,
        checkpoints: ReplicaCheckpoints | None = None,
        anyone: Callable[[bool], bool] = bool,
    ) -> None:
        self.rank = rank
        self._guard = guard or Guard(replica)
        self._checkpoints = checkpoints
        self._drew: Callable[[bool], object] = checkpoints.drew if checkpoints is not None else bool
        parts, steering = (rank, client, replica, exchange, clock), StepSettings(replica.optimizer)
        self._context = WorkerContext(*parts, self._follow, self._come_back, steering, anyone)
        self._side: StepMode = ParameterServerMode(self._context)
        self._losses = LossReports(self._context, self._guard)
        exchange.beside = self._context.losses.read
        self._position = EpochPosition()
        self._ready: Ready | None = None
        self.arrivals: dict[int, Lateness] = {}
        self.processed: int | None = None
        """Samples of the last epoch that the job has processed, if that is known."""
        self.left = False
        self.been_apart = False
        """Whether workers have made steps of their own since the job began."""
        self._inside = self._shares = self._weighs = False
        self._collectives: int | None = None
        """Of all ranks, that the script has come to since the end of the epoch before."""

    @property
    def tally(self) -> Tally:
        return self._context.tally

    @property
    def phase(self) -> Phase | None:
        return self._context.phase

    @property
    def version(self) -> int:
        return max(0, self._context.version)

    @property
    def apart(self) -> bool:
        """Whether workers make steps of their own now, so that they cannot meet in a collective."""
        return not self._side.together

    @property
    def shares(self) -> bool:
        """Whether the policy in force gives workers mini-batches of unequal size."""
        return self._shares

    # -- what the loader calls ---------------------------------------------------------------------------------------

    def begin_epoch(self, ready: Ready) -> None:
        """Stand before an epoch until there is a step to make, or until it is over without one."""
        context = self._context
        context.begin_epoch()
        if self.left:
            return
        if self._ready is not None and not context.done:
            self._leave_early()
        if self._guard.goes_back:
            self.fetch_state()
            self._guard.keep(ready.epoch)
        self._ready = ready = msgspec.structs.replace(ready, collectives=self._collectives)
        self._position.begin(ready)
        context.over = context.done = False
        self._drew(False)  # also after a loop that was left early
        context.client.send(ready)
        self._collectives = None
        context.wait()

    @property
    def samples(self) -> int:
        """Samples that the job had dealt out before the mini-batch that the script has."""
        return self._position.samples

    def dealt(self, draw: DrawnBatch, part: float = 1.0, last: bool = True) -> bool:
        """The script gets a mini-batch, unless it is void, or this part of it by its weight in a step of several.

        Its backward pass is the `last` one before the step, or adds to the gradients of those before it.
        """
        context, phase = self._context, self._context.phase
        if draw.generation != context.generation:
            return False
        self._position.deal(draw, not self._side.together, len(phase.members) if phase else 1)
        if self._weighs:
            context.replica.weigh(None if draw.weight is None else draw.weight * part)
        context.exchange.reduce_now(last)
        return True

    def draw(self) -> DrawnBatch | None:
        """The next mini-batch that this worker may fetch; None when there is none for now."""
        draw = None if self.left else self._side.draw()
        if draw is not None:
            draw.generation = self._context.generation
        self._drew(draw is not None)
        return draw

    def end_epoch(self, out_of_data: bool = False) -> bool:
        """Stand at the end of the epoch until everyone does; False if there is more to process after all."""
        context = self._context
        if context.done:
            return True
        if out_of_data and context.may_step:
            self._side.share_steps(self._ready)
        early = out_of_data and context.may_step
        if early:
            self._side.drop_drawn()
        if early or not context.may_step:
            context.exchange.out = early and self._side.together
            context.tell_end(self._position.epoch, early=early)
            context.wait()
        return context.done

    def run_out(self) -> None:
        """The script wants no more data of this epoch: stand at its end; others may need this worker until then."""
        while not (self.left or self.end_epoch(out_of_data=True)):
            pass

    def collective(self) -> None:
        """The script has come to a collective of all ranks."""
        if self._collectives is not None:
            self._collectives += 1

    def wait_outside(self, for_all: bool) -> None:
        """The script waits outside of its loop, so that others must not wait for it; perhaps `for_all` of them."""
        self._context.tell_end(self._position.epoch, away=True, collectives=(self._collectives or 0) * for_all)

    @property
    def awaited(self) -> bool:
        """Whether others begin another epoch before they come to the collective in which the script waits for them."""
        try:
            return self._context.client.is_awaited(self._position.epoch)
        except CoordinatorLostError as error:
            self._come_back(error)
            return False

    def _leave_early(self) -> None:
        # The script has left its loop before the end: until the next phase nothing here concerns this worker.
        self._context.collective_failed = True
        self._side = ParameterServerMode(self._context)

    def fetch_state(self, within_epoch: bool = False) -> Resumption | None:
        """Bring what the servers have into the replica, at the end of an epoch or within one; what is left of that."""
        context = self._context
        if context.phase is None or self.left or not (context.done or within_epoch):
            return None
        try:
            return fetch(context, self._side)
        except CoordinatorLostError as error:
            self._come_back(error)
            self._side, context.may_step = ParameterServerMode(context), False  # a step that was granted is void
            return self.fetch_state(within_epoch)

    # -- what the optimizer's hooks call -----------------------------------------------------------------------------

    def before_step(self, samples: int) -> None:
        """The gradients are there. If they are not for the script's optimizer, hide them from it.

        A backward pass that ends in an exchange computes until it launches the last collective; then it waits.
        """
        context = self._context
        now_s = context.clock()
        launched_s = context.exchange.launched_s if context.exchange.reduces else now_s
        computed_at_s = launched_s if launched_s > context.started_s else now_s
        context.computed_s, context.exchanged_s = computed_at_s - context.started_s, now_s - computed_at_s
        context.void, context.loss = False, self._losses.hear(now_s)
        if context.steering.due:
            context.steering.begin()
        self._side.before_step(samples)

    def after_step(self, samples: int) -> None:
        context, tally = self._context, self._context.tally
        context.replica.show_gradients()
        if context.steering.own:
            context.steering.end()
        if context.void:
            tally.dropped_steps += 1
        else:
            tally.steps += 1
            tally.samples += samples
        tally.computed_s += context.computed_s
        self._side.after_step(samples)
        context.leave_after_step(self._position.epoch)

    def skip_step(self, samples: int) -> None:
        """The script drew a mini-batch and made no step with it, as a GradScaler does when it finds infinities."""
        if self.left:
            return
        context = self._context
        context.losses.drain()
        context.tally.skipped_steps += 1
        context.loss, context.computed_s, context.exchanged_s = None, context.clock() - context.started_s, 0.0
        self._side.skip_step(samples)

    def ask_to_leave(self) -> None:
        """From a signal's handler: the worker is to leave when its step is complete."""
        self._context.leaving = True
        self._context.client.interrupt()

    def leave(self, reason: str = "it has left") -> None:
        """Leave the job between two steps: others get the samples that this worker has not processed."""
        if self.left:
            return
        context, self.left = self._context, True
        context.generation, context.done = context.generation + 1, True  # what was fetched in advance is void
        context.client.send(Bye(context.client.reported.take(), early=True))
        context.exchange.abandon(f"rank {self.rank}: {reason}")
        context.exchange.part()

    def close(self) -> None:  # leave torch as it was
        self._context.losses.listen(False)

    def switch(self, policy: str) -> None:
        self._context.client.send(SwitchTo(policy))

    def _come_back(self, lost: CoordinatorLostError) -> None:
        come_back(self._context, self._side.standing(), self._ready, self._inside, lost)
        self._guard.say_again()

    # -- following the coordinator -----------------------------------------------------------------------------------

    def _follow(self, message: ToWorker) -> None:
        if isinstance(message, Phase):
            if self._newest(message):
                self._enter(message)
        elif isinstance(message, Refused):
            raise UsageError(f"rank {self.rank} cannot take part: {message.reason}")
        elif isinstance(message, Ended):
            raise DivergedError(message.reason)
        elif isinstance(message, EpochDone):
            self._finish_epoch(message)
        elif not self._context.collective_failed:  # else it belongs to a phase that has failed for this rank
            self._side.follow(message)

    def _newest(self, phase: Phase) -> bool:
        """Whether no other phase has begun since; then nobody waits for this worker in this one."""
        context = self._context
        while (message := context.client.poll()) is not None:
            context.pending.append(message)
        newest = not any(isinstance(message, Phase) for message in context.pending)
        context.collective_failed |= not newest
        self.been_apart |= runtime_placement(parse_policy(phase.policy)) != "every_rank"
        return newest

    def _enter(self, phase: Phase) -> None:
        """A phase starts: forget what was granted, agree on the state, and move it where the policy needs it."""
        log.info("rank %d: phase %d, policy %s, members %s", self.rank, phase.number, phase.policy, phase.members)
        context, policy = self._context, parse_policy(phase.policy)
        placement = runtime_placement(policy)
        if context.phase is None or context.phase.policy != phase.policy:
            context.exchange.forget_velocity()
        context.enter(phase, together=placement == "every_rank")
        self._side, self._inside, on_servers = ParameterServerMode(context), False, placement == "servers"
        self._shares = policy.traits.shares
        self._weighs = phase.weighs or self._shares
        self._losses.begin(phase, "loss" in policy.traits.needs, means=self._weighs)
        context.replica.weigh(None)
        context.exchange.part()
        if phase.may_refuse and context.refuses(policy):
            return
        self._go_back(phase)
        if self._checkpoints is not None:
            self._checkpoints.go_on(lambda: context.exchange.averager, phase.streams)
        if not on_servers or phase.contributors:
            try:
                self._meet(phase, policy.traits.placement == "every_rank")
            except GroupError as error:
                context.collective_failed = True
                context.client.send(CollectiveFailed(phase.number, 0, str(error)))
                return
        if phase.keeps:
            self._guard.keep_before_trial(phase.number)
        self._move_state(phase, on_servers)
        if on_servers:
            context.exchange.leave()
            self._side = ParameterServerMode(context, policy.traits)
        else:
            try:
                self._side = mode_on_workers(context, policy, phase)
            except PolicyError as error:
                context.report_failed_collective(0, str(error), broken=True)
                return
        self._inside = True
        context.client.send(Entered(phase.number, self._save(phase, on_servers)))

    def _save(self, phase: Phase, on_servers: bool) -> bytes:
        """Write the state if that is this worker's part; its random streams."""
        context, checkpoints = self._context, self._checkpoints
        if not phase.save or checkpoints is None:
            return b""
        if self.rank == phase.source:
            if on_servers and phase.state != "upload":
                context.client.download(phase.version)
            checkpoints.save(phase.save, context.exchange.velocity)
        return checkpoints.streams()

    def _go_back(self, phase: Phase) -> None:
        """If the phase goes on from a state that was kept: the contributor takes it, for all."""
        if phase.back_to is None:
            return
        self._guard.start_again()
        if self.rank in phase.contributors:
            self._guard.go_back(phase.back_to)

    def _meet(self, phase: Phase, measures: bool) -> None:
        context = self._context
        context.client.meet(context.exchange, phase.members, phase.number, measures)
        if phase.contributors:
            context.exchange.agree(phase.members, phase.contributors)

    def _move_state(self, phase: Phase, on_servers: bool) -> None:
        context, client = self._context, self._context.client
        has_it = not on_servers or bool(phase.contributors)
        if phase.state == "pull":
            client.download(phase.version)
        elif phase.state == "upload" and self.rank == phase.source:
            client.upload(phase.version)
            has_it = True
        # Servers that go on may be ahead of what this worker has read, and an upload may differ from what it has.
        if has_it:
            context.version = phase.version
        elif phase.state == "upload":
            context.version = UNREAD

    def _finish_epoch(self, message: EpochDone) -> None:
        finish(self._context, self._side, message)
        self._context.done = message.epoch == self._position.epoch
        if self._context.done:
            self._position.end()
            self._collectives = 0
        self.arrivals, self.processed = message.arrivals, message.samples
