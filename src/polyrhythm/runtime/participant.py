"""A worker's side of the job: what it does at the edges of its steps, and what it does when the hub speaks.

The loader calls `begin_epoch`, `draw` and `end_epoch`; the optimizer's hooks call `before_step` and `after_step`.
Between them the script computes, and nothing happens here. Messages are followed where the worker has to wait for the
hub anyway, and looked at just before a push.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from polyrhythm.core import Cluster
from polyrhythm.core.workload import Lease
from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse
from polyrhythm.runtime.control import (
    AtEnd,
    Cancelled,
    EpochDone,
    Go,
    Lockstep,
    Over,
    Phase,
    Poisoned,
    Pushed,
    Ready,
    Refused,
    Skipped,
    Stepped,
    SwitchTo,
    Token,
    ToWorker,
    Uploaded,
)
from polyrhythm.runtime.epoch import GroupError
from polyrhythm.runtime.exchange import Exchange
from polyrhythm.runtime.line import Draw, Link, Tally
from polyrhythm.runtime.replica import Replica
from polyrhythm.runtime.schedule import Schedule
from polyrhythm.runtime.strides import Strides

log = logging.getLogger(__name__)


class JobError(PolyrhythmError):
    """The job cannot go on for this worker: it was refused, removed, or the hub is gone."""


class Participant:
    """Follows the hub.

    Args:
        rank: this worker's.
        link: see `Link`.
        replica: the script's model and optimizer.
        exchange: the model's side of collectives.
        clock: seconds, for durations only; that of `Exchange.launched_s`.
    """

    def __init__(
        self,
        rank: int,
        link: Link,
        replica: Replica,
        exchange: Exchange,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rank = rank
        self.tally = Tally()
        self.phase: Phase | None = None
        self.generation = 0
        self.version = 0
        self._link = link
        self._replica = replica
        self._exchange = exchange
        self._clock = clock
        self._epoch = -1
        self._dataset_samples = 0
        self._position = 0
        self._schedule: Schedule | None = None
        self._index = 0
        self._steps = 0
        self._drawn = 0
        self._leases: deque[Lease] = deque()
        self._tokens: deque[Token] = deque()
        self._go: Go | None = None
        self._hidden = False
        self._poisoned = False
        self._void = False
        self._over = False
        self._done = False
        self._may_step = False
        self._started_s = 0.0
        self._pulled_s = 0.0
        self._computed_s = 0.0
        self._exchanged_s = 0.0

    # -- what the loader calls ---------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, dataset_samples: int, batch_size: int, ahead: int, processed: int = 0) -> None:
        """Stand before an epoch until there is a step to make, or until it is over without one."""
        if self._epoch >= 0 and not self._done:
            self._leave_early()
        self._epoch, self._dataset_samples, self._position = epoch, dataset_samples, 0
        self._over = self._done = False
        self._link.send(Ready(epoch, dataset_samples, batch_size, ahead, processed))
        self._wait()

    @property
    def samples(self) -> int:
        """Samples that the job had dealt out before the mini-batch that the script has."""
        return max(self._epoch, 0) * self._dataset_samples + self._position

    def dealt(self, draw: Draw) -> None:
        """The script gets a mini-batch of this draw."""
        self._position = draw.leases[0].start

    def draw(self) -> Draw | None:
        """The next mini-batch that this worker may fetch; None when there is none for now."""
        if self._schedule is not None:
            plan = self._schedule.plan
            if plan is None or self._drawn >= plan.steps or self._done:
                return None
            self._drawn += 1
            return Draw(plan.batch(self._drawn - 1, self._index), self.generation)
        if not self._leases:
            return None
        return Draw((self._leases.popleft(),), self.generation)

    def end_epoch(self) -> bool:
        """Stand at the end of the epoch until everyone does; False if there is more to process after all."""
        if self._done:
            return True
        if not self._may_step:
            self._link.send(AtEnd(self._epoch))
            self._wait()
        return self._done

    def _leave_early(self) -> None:
        """The script has left its loop before the end: until the next phase nothing here concerns this worker."""
        self._poisoned = True
        self._go, self._schedule = None, None
        self._leases.clear()

    def fetch_state(self) -> None:
        """Between two epochs: take over the optimizer's state if the servers have it."""
        if self._schedule is None and self.phase is not None and self._done:
            self._link.download(self.version)

    # -- what the optimizer's hooks call -----------------------------------------------------------------------------

    def before_step(self, samples: int) -> None:
        """The gradients are there. If they are not for the script's optimizer, hide them from it.

        A backward pass that ends in an exchange computes until it launches the last collective; then it waits.
        """
        now_s = self._clock()
        launched_s = self._exchange.launched_s if self._exchange.reduces else now_s
        computed_at_s = launched_s if launched_s > self._started_s else now_s
        self._computed_s, self._exchanged_s = computed_at_s - self._started_s, now_s - computed_at_s
        self._void = False
        if self._schedule is None:
            self._push(samples)
            self._hide()
        elif self._exchange_failed:
            self._poisoned = self._void = True
            self._hide()

    def after_step(self, samples: int) -> None:
        """The step is complete, but for what the policy makes of it."""
        if self._hidden:
            self._replica.show_gradients()
            self._hidden = False
        if self._void:
            self.tally.dropped_steps += 1
        else:
            self.tally.steps += 1
            self.tally.samples += samples
        self.tally.computed_s += self._computed_s
        if self._schedule is None:
            self._wait()
        else:
            self._complete(samples)

    def skip_step(self, samples: int) -> None:
        """The script drew a mini-batch and made no step with it, as a GradScaler does when it finds infinities."""
        self.tally.skipped_steps += 1
        self._computed_s, self._exchanged_s = self._clock() - self._started_s, 0.0
        if self._go is not None:
            self._link.send(Skipped(self._go.number, samples))
            self._go = None
            self._wait()
        elif self._schedule is not None:
            self._poisoned = self._exchange_failed
            self._complete(samples, skipped=True)

    @property
    def _exchange_failed(self) -> bool:
        """Whether the gradients at hand are not the mean that they should be."""
        return self._exchange.reduces and self._exchange.failure is not None

    def accumulate(self, last: bool) -> None:
        """The next backward pass is the last one before the step, or adds to the gradients of those before it."""
        self._exchange.reduce_now(last)

    def switch(self, policy: str) -> None:
        """Ask for another policy."""
        self._link.send(SwitchTo(policy))

    # -- arbitrated steps --------------------------------------------------------------------------------------------

    def _push(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile."""
        while self._go is not None and (message := self._link.poll()) is not None:
            self._follow(message)
        go, self._go = self._go, None
        if go is None:  # cancelled; the Go behind it waits until the step is over
            self._void = True
            return
        start = self._clock()
        self._link.push(go.number)
        transfer_s = self._pulled_s + self._clock() - start
        settings = self._replica.settings()
        self._link.send(Pushed(go.number, samples, self._computed_s, transfer_s, settings=settings))

    def _hide(self) -> None:
        self._replica.hide_gradients()
        self._hidden = True

    # -- steps in lockstep -------------------------------------------------------------------------------------------

    def _complete(self, samples: int, skipped: bool = False) -> None:
        """End a step in lockstep: with an average if the policy wants one, there is a stop, or the epoch ends."""
        schedule = self._schedule
        assert schedule is not None, "a step in lockstep has a schedule"
        if self._poisoned:
            self._poison(schedule.step, "the gradients' exchange failed")
            return
        step, exchanged = schedule.step, schedule.exchange == "gradients"
        stop = step + 1 < self._steps and self._token(step)
        sync = schedule.advance()
        waited_from = self._clock()
        if not exchanged and (sync is not None or stop or schedule.done):
            try:
                self._exchange.average()
            except GroupError as error:
                self._poison(step + 1, str(error))
                return
            exchanged = True
        wait_s = self._exchanged_s + self._clock() - waited_from
        self.tally.waited_s += wait_s
        self._link.send(Stepped(step, samples, self._computed_s, exchanged, skipped, wait_s))
        self._exchange.reduce_gradients(schedule.exchange == "gradients")
        self._started_s = self._clock()
        if stop:
            self._wait()
        elif schedule.done:
            self._may_step = False

    def _token(self, step: int) -> bool:
        """Whether everyone stops behind this step; normally the answer is there already."""
        while not self._tokens or self._tokens[0].step < step:
            if self._tokens:
                self._tokens.popleft()
            else:
                self._follow(self._link.receive())
        return self._tokens[0].stop

    def _poison(self, completed: int, detail: str) -> None:
        """Tell the hub that the phase has failed here, and wait for the next."""
        assert self.phase is not None
        self._poisoned = True
        self._exchange.part()
        self._link.send(Poisoned(self.phase.number, completed, detail))
        self._wait()

    # -- following the hub -------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Follow messages until there is a step to make, or none for now."""
        self._may_step = self._over = False
        start = self._clock()
        while not (self._may_step or self._over or self._done):
            self._follow(self._link.receive())
        self._started_s = self._clock()
        self.tally.waited_s += self._started_s - start

    def _follow(self, message: ToWorker) -> None:
        if isinstance(message, Phase):
            self._enter(message)
        elif isinstance(message, Refused):
            raise JobError(f"rank {self.rank} cannot take part: {message.reason}")
        elif isinstance(message, EpochDone):
            self._finish_epoch(message)
        elif not self._poisoned:  # else it belongs to a phase that has failed for this rank
            self._follow_steps(message)

    def _follow_steps(self, message: ToWorker) -> None:
        match message:
            case Lockstep():
                self._start_lockstep(message)
            case Token():
                self._tokens.append(message)
            case Go():
                self._start_step(message)
            case Cancelled(number=number):
                self._cancel(number)
            case Over():
                self._over = True

    def _enter(self, phase: Phase) -> None:
        """A phase starts: forget what was granted, agree on the state, and move it where the policy needs it."""
        log.info("rank %d: phase %d, policy %s, members %s", self.rank, phase.number, phase.policy, phase.members)
        policy = parse(phase.policy)
        lockstep = policy.traits.venue == "scheduled"
        self.phase = phase
        self.generation += 1
        self._leases.clear()
        self._tokens.clear()
        self._go, self._schedule, self._poisoned = None, None, False
        self._exchange.part()
        if lockstep or phase.contributors:
            try:
                self._meet(phase)
            except GroupError as error:
                self._poisoned = True
                self._link.send(Poisoned(phase.number, 0, str(error)))
                return
        self._move_state(phase)
        if lockstep:
            counts = phase.batch_size, phase.workload_samples, phase.processed_samples
            cluster = Cluster(len(phase.members), *counts)
            self._schedule = Schedule(policy, cluster, phase.members, self.rank)
        else:
            self._exchange.part()

    def _meet(self, phase: Phase) -> None:
        self._link.meet(self._exchange, phase.members, phase.number)
        if phase.contributors:
            self._exchange.agree(phase.members, phase.contributors)

    def _move_state(self, phase: Phase) -> None:
        self.version = phase.version
        if phase.state == "pull":
            self._link.download(phase.version)
        elif phase.state == "upload" and self.rank == phase.source:
            self._link.upload(phase.version)
            self._link.send(Uploaded(phase.number))

    def _start_lockstep(self, message: Lockstep) -> None:
        assert self.phase is not None
        assert self._schedule is not None, "lockstep follows a phase with a scheduled policy"
        plan = Strides(message.ranges, len(self.phase.members), message.batch_size)
        self._index = self.phase.members.index(self.rank)
        self._schedule.start(plan)
        self._steps, self._drawn = plan.steps, 0
        self._tokens.clear()
        self._exchange.reduce_gradients(self._schedule.exchange == "gradients")
        self._may_step = True

    def _start_step(self, go: Go) -> None:
        """Read the parameters that the step is to start from."""
        start = self._clock()
        if go.version > self.version:
            self._link.pull(go.version)
            self.version = go.version
        self._pulled_s = self._clock() - start
        self.tally.transferred_s += self._pulled_s
        self._leases.extend(go.leases)
        self._go, self._may_step = go, True

    def _cancel(self, number: int) -> None:
        if self._go is not None and self._go.number == number:
            self._go = None

    def _finish_epoch(self, message: EpochDone) -> None:
        """Everyone is at the end: take over the final parameters, if the servers have them."""
        if self._schedule is None and self.phase is not None and message.version > self.version:
            self._link.pull(message.version)
            self.version = message.version
        self._done = message.epoch == self._epoch
