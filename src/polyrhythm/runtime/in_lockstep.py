"""A worker's side of steps in lockstep: everyone makes the same number of them and knows what the policy decides.

Under a **scheduled** policy a rank knows it from clocks alone. Under a **replicated** one the members tell each other
what they have measured once their gradients are there, before their optimizers step, so that the mean gradient can take
the place of a rank's own.
"""

from collections import deque
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Policy, Sync
from polyrhythm.core.workload import Lease
from polyrhythm.runtime.averager import Stake
from polyrhythm.runtime.control import Lockstep, Phase, Record, Stepped, Token, ToWorker
from polyrhythm.runtime.epoch import GroupError
from polyrhythm.runtime.pace import PERIOD_S
from polyrhythm.runtime.schedule import Schedule
from polyrhythm.runtime.station import Station
from polyrhythm.runtime.strides import Strides


class InLockstep:
    """Makes the steps of a phase in which all members step together."""

    together: ClassVar[bool] = True
    on_servers: ClassVar[bool] = False

    def __init__(self, station: Station, policy: Policy[Any], cluster: Cluster, phase: Phase) -> None:
        self._station = station
        self._measures = policy.traits.venue == "replicated"
        self._needs = policy.traits.needs
        self._own = Record()
        self._records: tuple[Record, ...] = ()
        self._members = phase.members
        self._index = phase.members.index(station.rank)
        self._schedule = Schedule(policy, cluster, phase.members, station.rank)
        self._tokens: deque[Token] = deque()
        self._steps = 0
        self._drawn = 0
        self._decided: tuple[int, bool, Sync | None] | None = None
        self._failure: tuple[int, str] | None = None
        self._told_s = 0.0
        self._owes_word = False

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
        if self._owes_word:
            self._keep_word()
        if not (self._reduced() and self._measured()):
            station.void = True
            station.replica.hide_gradients()
            return
        self._decide()

    def after_step(self, samples: int) -> None:
        """Combine the replicas if the policy wants it, there is a stop, or the epoch ends."""
        self._complete(samples, skipped=False)

    def skip_step(self, samples: int) -> None:
        """For the others it is a step all the same."""
        if self._reduced(skipped=True) and self._exchange_records():
            self._decide()
        self._complete(samples, skipped=True)

    def end_epoch(self, version: int) -> None:
        """All have the same parameters already."""

    # -- details ---------------------------------------------------------------------------------------------------

    def _start(self, message: Lockstep) -> None:
        plan = Strides(message.ranges, len(self._members), message.batch_size)
        self._schedule.start(plan)
        self._steps, self._drawn = plan.steps, 0
        self._records = ()
        self._tokens.clear()
        self._station.exchange.complete(0)
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

    def _measured(self) -> bool:
        """Whether this rank knows what everyone has measured in this step, if the policy decides from that."""
        if not self._measures:
            return True
        station, needs = self._station, self._needs
        norm = station.replica.grad_sq_norm() if "grad_sq_norm" in needs else None
        self._own = Record(norm, station.loss if "loss" in needs else None)
        return self._exchange_records()

    def _exchange_records(self) -> bool:
        """The same; a rank that makes no step says once more what it has said in the last."""
        if not self._measures:
            return True
        station = self._station
        start = station.clock()
        try:
            self._records = station.exchange.exchange_records(self._own)
        except GroupError as error:
            self._failure = self._schedule.step, str(error)
        station.exchanged_s += station.clock() - start
        return self._failure is None

    def _decide(self) -> None:
        """Let the policy see this step; a mean gradient that it wants takes the place of this rank's."""
        schedule, station = self._schedule, self._station
        step, gradients = schedule.step, schedule.exchange == "gradients"
        sync = schedule.advance(self._records or None)
        self._decided = step, gradients, sync
        if sync is not None and sync.what == "gradients" and not gradients:
            try:
                station.exchange.average_gradients(Stake.of(sync, station.rank))
            except GroupError as error:
                self._failure = step + 1, str(error)

    def _token(self, step: int) -> Token:
        """The hub's word on this step; it is normally there already."""
        while not self._tokens or self._tokens[0].step < step:
            if self._tokens:
                self._tokens.popleft()
            else:
                self._station.follow(self._station.link.receive())
        return self._tokens[0]

    def _complete(self, samples: int, skipped: bool) -> None:
        station = self._station
        if self._failure is not None:
            station.poison(*self._failure, records=self._records)
            return
        assert self._decided is not None, "a step is decided before it is complete"
        step, gradients, sync = self._decided
        last = step + 1 >= self._steps
        token = None if last else self._token(step)
        stop = token is not None and token.stop and token.step == step
        shared = not gradients and sync is not None and sync.what == "gradients"
        waited_from = station.clock()
        try:
            if not gradients:
                self._combine(step, sync, stop or last)
        except GroupError as error:
            station.poison(step + 1, str(error), station.exchange.averager.reached, shared, self._records)
            return
        wait_s = station.exchanged_s + station.clock() - waited_from
        station.tally.waited_s += wait_s
        reached = step + 1 if gradients else station.exchange.averager.reached
        station.exchange.complete(step + 1)
        station.started_s = station.clock()
        figures = station.computed_s, reached, shared, skipped, wait_s
        self._prepare(gradients)
        self._tell(Stepped(step, samples, *figures, self._records, station.started_s), token)
        if stop:
            station.wait()
        elif last:
            station.may_step = False

    def _tell(self, made: Stepped, token: Token | None) -> None:
        """Let the hub know of a step: with others when it wants to hear of them, or with what follows the last one.

        If it can wait for one more step, the word goes out while that one's exchange is under way: the hub then
        finds an idle processor, and takes none from those who compute.
        """
        station = self._station
        station.link.hold(made)
        if token is None or (made.step != token.tell and station.started_s - self._told_s <= 2 * PERIOD_S):
            return
        self._told_s = station.started_s
        self._owes_word = True
        if made.step >= token.step or not station.exchange.meanwhile(self._keep_word):
            self._keep_word()

    def _keep_word(self) -> None:
        self._owes_word = False
        self._station.link.flush()

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
