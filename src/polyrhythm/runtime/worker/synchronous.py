"""A worker's side of steps in synchronous mode: everyone makes the same number of them and knows what the policy
decides.

Under a policy that follows from **clocks** a rank knows it from clocks alone. Under one that **every rank** runs the
members tell each other what they have measured once their gradients are there, before their optimizers step, so that
the mean gradient can take the place of a rank's own.
"""

import contextlib
import logging
import weakref
from collections import deque
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Policy, Sync
from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.token_window import PERIOD_S
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import CoordinatorLostError, GroupError, PolicyError
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.collectives.attending.clipping import CLIPS
from polyrhythm.runtime.collectives.attending.scaling import EAR, agree_on_scales
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.wire.protocol import (
    MeasuredStep,
    Over,
    Phase,
    Ready,
    Stepped,
    SynchronousSteps,
    Token,
    ToWorker,
)
from polyrhythm.runtime.wire.segments import unpacked
from polyrhythm.runtime.worker.context import DrawnBatch, WorkerContext
from polyrhythm.runtime.worker.schedule import LocalSchedule
from polyrhythm.training.flat import uneven_statistics

log = logging.getLogger(__name__)

FAILED = "the gradients' exchange failed"

CHECKED_EVERY = 256
"""Steps after which replicas that should be equal are compared, as they are at the end of each epoch."""


class SynchronousMode:
    together: ClassVar[bool] = True
    on_servers: ClassVar[bool] = False

    def __init__(self, context: WorkerContext, policy: Policy[Any], cluster: Cluster, phase: Phase) -> None:
        self._context = context
        self._measures = policy.traits.placement == "every_rank"
        self._needs = policy.traits.needs
        self._stay_equal = policy.traits.steady
        self._own = MeasuredStep()
        self._records = b""
        self._members = phase.members
        self._has_say = not phase.contributors or context.rank in phase.contributors
        CLIPS.exchange = weakref.ref(context.exchange)
        self._schedule = LocalSchedule(policy, cluster, phase.members, context.rank, phase.policy_state)
        self._tokens: deque[Token] = deque()
        self._steps = 0
        self._drawn = 0
        self._dataset_samples = cluster.dataset_samples or 0
        self._decided: tuple[int, bool, Sync | None] | None = None
        self._failure: tuple[int, str] | None = None
        self._broken = False
        self._told_s = 0.0
        self._owes_word = False
        self._run = 0
        self._begin_run()

    def _begin_run(self) -> None:
        self._completed = self._exchanged = 0
        self._shared: list[int] = []
        self._skipped: list[int] = []

    def standing(self) -> Returned:
        """The policy's state is that of this rank, which has shown it all steps that it has completed."""
        shares = self._schedule.shares
        changes = zip(shares.since[1:], shares.shares[1:], strict=True) if shares is not None else ()
        return Returned(
            run=self._run,
            completed=self._completed,
            exchanged=self._exchanged,
            shared=tuple(self._shared),
            skipped=tuple(self._skipped),
            shares=tuple(changes),
            state=self._schedule.rested,
        )

    @property
    def left(self) -> tuple[SampleRange, ...] | None:
        """What the steps take that follow one whose exchange makes all replicas equal, and all that they hold."""
        plan, whole = self._schedule.plan, self._exchanged == self._completed and not self._holds_own
        return plan.rest(self._completed) if plan is not None and whole else None

    @property
    def _holds_own(self) -> bool:
        """Whether an average of the replicas leaves each its own state of an optimizer, or an outer one has its own."""
        context = self._context
        if self._schedule.exchange == "gradients":
            return False
        return bool(context.replica.optimizer.state) or context.exchange.averager.velocity is not None

    def _note(self, step: int, gradients: bool, shared: bool, skipped: bool) -> int:
        """This rank has completed a step; how many of all are exchanged by now."""
        exchanged = step + 1 if gradients else self._context.exchange.averager.reached
        self._completed, self._exchanged = step + 1, max(self._exchanged, exchanged)
        if shared:
            self._shared.append(step)
        if skipped:
            self._skipped.append(step)
        return exchanged

    def draw(self) -> DrawnBatch | None:
        schedule, plan, step = self._schedule, self._schedule.plan, self._drawn
        if plan is None or step >= plan.steps or self._context.done:
            return None
        self._drawn += 1
        before = self._dataset_samples - plan.samples + step * plan.members * plan.batch_size
        batch, largest, weight = schedule.draw(step)
        return DrawnBatch(batch, before, plan.members, largest, weight=weight)

    def drop_drawn(self) -> None:
        """What is left of the plan everybody knows."""

    def follow(self, message: ToWorker) -> None:
        match message:
            case SynchronousSteps():
                self._start(message)
            case Token():
                self._tokens.append(message)
                if message.shares is not None:
                    self._change_shares(message.since, message.shares)
            case Over():
                self._context.over = True

    def before_step(self, samples: int) -> None:
        """Unless the exchange of the gradients has failed, hear what the policy decides about this step."""
        context = self._context
        if self._owes_word:
            self._keep_word()
        if not (self._reduced() and (not self._measures or self._measured()) and self._decide()):
            context.void = True
            context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        """Combine the replicas if the policy wants it, there is a stop, or the epoch ends."""
        CLIPS.own_steps += 1
        self._complete(samples, skipped=False)

    def skip_step(self, samples: int) -> None:
        """For the others it is a step all the same; if one of them makes it, so do all whose parameters stay equal."""
        replica = self._context.replica
        replica.hide_gradients()
        others_step = self._attended()
        if self._owes_word:
            self._keep_word()
        if self._failure is None and self._exchange_records() and self._decide() and others_step:
            self._step_with_others()
        replica.show_gradients()
        self._complete(samples, skipped=True)

    def share_steps(self, ready: Ready | None) -> None:
        """The others do not wait: this rank makes their steps with nothing, until all stop and become equal."""
        context, phase = self._context, self._context.phase
        if ready is None or not ready.own or self._is_equal:
            return
        context.tell_end(ready.epoch, early=True, stops=True)
        while context.may_step and context.phase is phase:
            context.loss, context.exchanged_s = None, 0.0
            self.skip_step(0)

    @property
    def _is_equal(self) -> bool:
        """Whether the last step has left all members the same replica."""
        if self._decided is None or self._exchanged < self._completed:
            return self._completed == 0
        _, gradients, sync = self._decided
        return gradients or (sync is not None and not sync.delay and not sync.fragment)

    def end_epoch(self, version: int) -> None:
        """All have the same parameters already."""

    # -- details ---------------------------------------------------------------------------------------------------

    def _start(self, message: SynchronousSteps) -> None:
        least = message.least, message.least_even
        plan = EpochPlan(message.ranges, len(self._members), message.batch_size, *least)
        try:
            self._schedule.start(plan, message.shares)
        except PolicyError as error:
            self._context.report_failed_collective(0, str(error), broken=True)
            return
        self._steps, self._drawn = plan.steps, 0
        self._tell_statistics(message.shares)
        self._run += 1
        self._begin_run()
        self._records = b""
        self._tokens.clear()
        self._context.exchange.complete(0)
        self._prepare(from_gradients=True)
        self._context.may_step = self._context.stays = True

    def _change_shares(self, since: int, shares: tuple[int, ...]) -> None:
        assert since >= self._drawn, f"shares change from step {since} on, but {self._drawn} mini-batches are drawn"
        assert self._schedule.shares is not None, "a token follows the steps"
        self._schedule.shares.change(since, shares)
        self._tell_statistics(shares)

    def _tell_statistics(self, shares: tuple[int, ...]) -> None:
        """Say once what unequal mini-batches mean for the model's statistics."""
        context = self._context
        if not shares or context.told_statistics:
            return
        context.told_statistics = True
        if context.rank == min(self._members) and (line := uneven_statistics(context.replica.model)):
            log.warning("%s", line)

    def _prepare(self, from_gradients: bool) -> None:
        self._context.steering.settings = self._schedule.settings
        exchange, gradients = self._context.exchange, self._schedule.exchange == "gradients"
        if from_gradients and not gradients:
            exchange.averager.start()
        if gradients and not (exchange.reduces or exchange.by_hand):
            with contextlib.suppress(GroupError):  # which `failure` tells
                agree_on_scales(exchange.generation, self._has_say)
        exchange.reduce_gradients(gradients)

    def _reduced(self) -> bool:
        """Whether the gradients are everyone's mean, if they are exchanged; some are only now."""
        exchange = self._context.exchange
        if exchange.awaits_reduction():
            try:
                exchange.reduce_by_hand()
            except GroupError as error:
                self._failure = self._schedule.step, f"{FAILED}: {error}"
        elif exchange.reduces and exchange.failure is not None:
            self._failure = self._schedule.step, f"{FAILED}: {exchange.failure}"
        return self._failure is None

    def _attended(self) -> bool:
        """Whether others make the step for which this rank's script has no gradients; it has theirs then."""
        exchange, others_step = self._context.exchange, False
        EAR.tried |= self._context.tally.steps > 0
        try:
            others_step = exchange.attend()
        except GroupError as error:
            self._failure = self._schedule.step, f"{FAILED}: {error}"
        if self._failure is None and exchange.reduces and exchange.failure is not None:
            self._failure = self._schedule.step, f"{FAILED}: {exchange.failure}"
        return others_step

    def _step_with_others(self) -> None:
        steering = self._context.steering
        CLIPS.repeat()
        if steering.due:
            steering.begin()
        self._context.replica.step()
        if steering.own:
            steering.end()

    def _measured(self) -> bool:
        """Whether this rank knows what everyone has measured in this step."""
        context, needs = self._context, self._needs
        norm = context.replica.grad_sq_norm() if "grad_sq_norm" in needs else None
        self._own = MeasuredStep(norm, context.loss if "loss" in needs else None)
        return self._exchange_records()

    def _exchange_records(self) -> bool:
        """The same; a rank that makes no step says once more what it has said in the last."""
        if not self._measures:
            return True
        context = self._context
        start = context.clock()
        try:
            self._records = context.exchange.exchange_records(self._own)
        except GroupError as error:
            self._failure = self._schedule.step, str(error)
        context.exchanged_s += context.clock() - start
        return self._failure is None

    def _decide(self) -> bool:
        """Let the policy see this step; a mean gradient that it wants takes the place of this rank's.

        False if the policy fails: the step is none then.
        """
        schedule, context = self._schedule, self._context
        step, gradients = schedule.step, schedule.exchange == "gradients"
        try:
            sync = schedule.advance(unpacked(self._records) if self._records else None)
        except PolicyError as error:
            self._failure, self._broken = (step, str(error)), True
            return False
        self._decided = step, gradients, sync
        if sync is not None and sync.what == "gradients" and not gradients:
            try:
                context.exchange.average_gradients(ContributionWeight.of(sync, context.rank))
            except GroupError as error:
                self._failure = step + 1, str(error)
        return True

    def _token(self, step: int) -> Token:
        """The coordinator's word on this step; it is normally there already."""
        while not self._tokens or self._tokens[0].step < step:
            if self._tokens:
                self._tokens.popleft()
            else:
                self._context.follow(self._context.client.receive(within_step=True))
        return self._tokens[0]

    def _complete(self, samples: int, skipped: bool) -> None:
        if self._failure is not None:
            self._give_up(*self._failure, skipped)
            return
        assert self._decided is not None, "a step is decided before it is complete"
        step, gradients, sync = self._decided
        context, last = self._context, step + 1 >= self._steps
        shared = not gradients and sync is not None and sync.what == "gradients"
        try:
            token = None if last else self._token(step)
            waited_from, stop = context.clock(), token is not None and token.stop and token.step == step
            if not gradients:
                self._combine(step, sync, closing=stop or last)
            elif self._stay_equal and (last or (step + 1) % CHECKED_EVERY == 0):
                context.exchange.check_equal()
        except (GroupError, CoordinatorLostError) as error:
            reached = self._note(step, gradients, shared, skipped)
            context.report_failed_collective(step + 1, str(error), reached, shared, self._records, skipped=skipped)
            context.wait()
            return
        wait_s = context.exchanged_s + context.clock() - waited_from
        context.tally.waited_s += wait_s
        reached = self._note(step, gradients, shared, skipped)
        context.exchange.complete(step + 1)
        context.started_s = context.clock()
        figures = context.computed_s, reached, shared, skipped, wait_s
        if not self._stay_equal:
            self._prepare(gradients)
        self._tell(Stepped(step, samples, *figures, self._records, context.started_s, context.loss), token)
        if stop:
            context.wait()
        elif last:
            context.may_step = False

    def _give_up(self, completed: int, why: str, skipped: bool) -> None:
        """An exchange of the step has failed, or its decision: stand until there is another phase."""
        skipped &= completed > self._completed  # else the step is none
        self._completed = completed
        if skipped:
            self._skipped.append(completed - 1)
        self._context.report_failed_collective(
            completed, why, records=self._records, broken=self._broken, skipped=skipped
        )
        self._context.wait()

    def _tell(self, made: Stepped, token: Token | None) -> None:
        """Let the coordinator know of a step: with others when it wants to hear of them, or with what follows the last
        one.

        If it can wait for one more step, the word goes out while that one's exchange is under way: the coordinator then
        finds an idle processor, and takes none from those who compute.
        """
        context = self._context
        context.client.hold(made)
        if token is None or (made.step != token.tell and context.started_s - self._told_s <= 2 * PERIOD_S):
            return
        self._told_s = context.started_s
        self._owes_word = True
        if made.step >= token.step or not context.exchange.meanwhile(self._keep_word):
            self._keep_word()

    def _keep_word(self) -> None:
        self._owes_word = False
        self._context.client.flush()

    def _combine(self, step: int, sync: Sync | None, closing: bool) -> None:
        """Carry out what was decided about replicas; before a stop and at the end all become equal.

        What only some members exchange counts as exchanged once everyone is made equal: a worker that dies before
        leaves its steps to others.
        """
        exchange, averager, equal = self._context.exchange, self._context.exchange.averager, False
        averager.merge(step)
        if sync is not None and sync.what != "gradients":
            exchange.combine(ContributionWeight.of(sync, self._context.rank), step)
            averager.merge(step)
            equal = not sync.delay and not sync.fragment and {*(sync.adopters or sync.workers)} >= {*self._members}
        if closing and not equal:
            averager.mean(exchange.generation, step=step)
