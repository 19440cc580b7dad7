"""A worker's side of steps in lockstep: everyone makes the same number of them and knows what the policy decides.

Under a **scheduled** policy a rank knows it from clocks alone. Under a **replicated** one each tells the hub what it
has measured once its gradients are there, and gets everyone's figures back before its optimizer steps, so that the mean
gradient can take the place of its own.
"""

from collections import deque
from typing import Any

from polyrhythm.core import Cluster, Policy, Sync
from polyrhythm.core.workload import Lease
from polyrhythm.runtime.averager import Stake
from polyrhythm.runtime.control import Lockstep, Measured, Phase, Stepped, Token, ToWorker
from polyrhythm.runtime.epoch import GroupError
from polyrhythm.runtime.schedule import Schedule
from polyrhythm.runtime.station import Station
from polyrhythm.runtime.strides import Strides


class InLockstep:
    """Makes the steps of a phase in which all members step together."""

    def __init__(self, station: Station, policy: Policy[Any], cluster: Cluster, phase: Phase) -> None:
        self._station = station
        self._measures = policy.traits.venue == "replicated"
        self._needs_norm = "grad_sq_norm" in policy.traits.needs
        self._norm = 0.0 if self._needs_norm else None
        self._members = phase.members
        self._index = phase.members.index(station.rank)
        self._schedule = Schedule(policy, cluster, phase.members, station.rank)
        self._tokens: deque[Token] = deque()
        self._steps = 0
        self._drawn = 0
        self._stop = False
        self._decided: tuple[int, bool, Sync | None] | None = None
        self._failure: tuple[int, str] | None = None

    def draw(self) -> tuple[Lease, ...] | None:
        """This rank's share of the next step."""
        plan = self._schedule.plan
        if plan is None or self._drawn >= plan.steps or self._station.done:
            return None
        self._drawn += 1
        return plan.batch(self._drawn - 1, self._index)

    def follow(self, message: ToWorker) -> None:
        """What there is to step through, or whether to stop."""
        match message:
            case Lockstep():
                self._start(message)
            case Token():
                self._tokens.append(message)

    def before_step(self, samples: int) -> None:
        """Unless the exchange of the gradients has failed, hear what the policy decides about this step."""
        station = self._station
        if not self._reduced():
            station.void = True
            station.hide_gradients()
            return
        if self._needs_norm:
            self._norm = station.replica.grad_sq_norm()
        self._decide(samples)

    def after_step(self, samples: int) -> None:
        """Combine the replicas if the policy wants it, there is a stop, or the epoch ends."""
        self._complete(samples, skipped=False)

    def skip_step(self, samples: int) -> None:
        """For the others it is a step all the same."""
        if self._reduced(skipped=True):
            self._decide(samples)
        self._complete(samples, skipped=True)

    def end_epoch(self, version: int) -> None:
        """All have the same parameters already."""

    # -- details ---------------------------------------------------------------------------------------------------

    def _start(self, message: Lockstep) -> None:
        plan = Strides(message.ranges, len(self._members), message.batch_size)
        self._schedule.start(plan)
        self._steps, self._drawn = plan.steps, 0
        self._tokens.clear()
        self._prepare(from_gradients=True)
        self._station.may_step = True

    def _prepare(self, from_gradients: bool) -> None:
        """Make ready for a step of the kind that the policy has started."""
        self._station.steering.settings = self._schedule.settings
        exchange, gradients = self._station.exchange, self._schedule.exchange == "gradients"
        if from_gradients and not gradients:
            exchange.averager.start()
        exchange.reduce_gradients(gradients)

    def _reduced(self, skipped: bool = False) -> bool:
        """Whether the gradients are everyone's mean, if they are exchanged; compressed ones are only now."""
        exchange, failed = self._station.exchange, "the gradients' exchange failed"
        if exchange.by_hand:
            try:
                exchange.reduce_by_hand(skipped)
            except GroupError as error:
                self._failure = self._schedule.step, f"{failed}: {error}"
        elif exchange.reduces and exchange.failure is not None:
            self._failure = self._schedule.step, failed
        return self._failure is None

    def _decide(self, samples: int) -> None:
        """Let the policy see this step; a mean gradient that it wants takes the place of this rank's."""
        schedule, station = self._schedule, self._station
        step, gradients = schedule.step, schedule.exchange == "gradients"
        token = self._measure(step, samples) if self._measures else None
        if token is not None and token.records is None:
            self._failure = step + 1, "a worker is gone"
            return
        sync = schedule.advance(token.records if token else None)
        self._decided = step, gradients, sync
        if sync is not None and sync.what == "gradients" and not gradients:
            try:
                station.exchange.average_gradients(Stake.of(sync, station.rank))
            except GroupError as error:
                self._failure = step + 1, str(error)

    def _measure(self, step: int, samples: int) -> Token:
        """Tell what this rank has measured, and wait for what everyone has."""
        station = self._station
        station.link.send(Measured(step, samples, self._norm))
        start = station.clock()
        token = self._token(step)
        station.exchanged_s += station.clock() - start
        self._stop = token.stop
        return token

    def _token(self, step: int) -> Token:
        """The hub's word on this step; in a scheduled phase it is normally there already."""
        while not self._tokens or self._tokens[0].step < step:
            if self._tokens:
                self._tokens.popleft()
            else:
                self._station.follow(self._station.link.receive())
        return self._tokens[0]

    def _complete(self, samples: int, skipped: bool) -> None:
        station = self._station
        if self._failure is not None:
            station.poison(*self._failure)
            return
        assert self._decided is not None, "a step is decided before it is complete"
        step, gradients, sync = self._decided
        last = step + 1 >= self._steps
        stop = not last and (self._stop if self._measures else self._token(step).stop)
        shared = not gradients and sync is not None and sync.what == "gradients"
        waited_from = station.clock()
        try:
            if not gradients:
                self._combine(step, sync, stop or last)
        except GroupError as error:
            station.poison(step + 1, str(error), station.exchange.averager.reached, shared)
            return
        wait_s = station.exchanged_s + station.clock() - waited_from
        station.tally.waited_s += wait_s
        reached = step + 1 if gradients else station.exchange.averager.reached
        station.link.send(Stepped(step, samples, station.computed_s, reached, shared, skipped, wait_s))
        self._prepare(gradients)
        station.started_s = station.clock()
        if stop:
            station.wait()
        elif last:
            station.may_step = False

    def _combine(self, step: int, sync: Sync | None, closing: bool) -> None:
        """Carry out what was decided about replicas; before a stop and at the end all become equal.

        What only some members exchange counts as exchanged once everyone is made equal: a worker that dies before
        leaves its steps to others.
        """
        exchange, averager, equal = self._station.exchange, self._station.exchange.averager, False
        averager.merge(step)
        if sync is not None and sync.what != "gradients":
            exchange.combine(Stake.of(sync, self._station.rank), step)
            averager.merge(step)
            equal = not sync.delay and not sync.fragment and {*(sync.adopters or sync.workers)} >= {*self._members}
        if closing and not equal:
            averager.mean(exchange.epoch, step=step)
