"""A worker of a job in memory: it says to the coordinator what a session says, and computes nothing."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polyrhythm.core import Sync
from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.placement import runtime_placement
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire import protocol as control
from polyrhythm.runtime.wire.segments import packed, unpacked
from polyrhythm.runtime.worker.schedule import LocalSchedule

if TYPE_CHECKING:
    from tests.runtime.fake_job import FakeJob

ALONE = ("alone",)
"""What a worker yields that goes on by itself, when others have had a chance to."""

Steps = Generator[tuple[Any, ...] | None, Any, None]


class Travelling(NamedTuple):
    """An exchange that is under way, and what this rank has put into it."""

    due: int
    started: int
    fragment: tuple[int, int] | None
    offer: list[SampleRange]


class FakeWorker:
    """One rank. `held` are positions that only its own replica or gradient has seen so far."""

    def __init__(self, job: "FakeJob", rank: int, ahead: int) -> None:
        self.job, self.rank, self.ahead = job, rank, ahead
        self.alive, self.finished, self.collective_failed, self.left = True, False, False, False
        self.ended = ""
        self.completed = 0
        self.inbox: deque[control.ToWorker] = deque()
        self.held: list[SampleRange] = []
        self.stale: list[SampleRange] = []
        self.untold: list[control.Stepped] = []
        self.skipping = 0
        self.owes_word = False
        self.offers: dict[tuple[Any, ...], list[SampleRange]] = {}
        self.in_flight: list[Travelling] = []
        self.phase: control.Phase | None = None
        self.drained, self.asked_in = False, -1
        """Whether it is to leave, and the phase in which it has asked for a stop."""
        self.life = self._live()
        self.wants = next(self.life)

    def _live(self) -> Steps:
        for epoch in range(self.job.epochs):
            script = 0 if self.job.against else None
            self._tell(control.Ready(epoch, self.job.samples, self.job.batch_size, self.ahead, script=script))
            message = yield None
            while not isinstance(message, control.EpochDone):
                message = yield from self._follow(message, epoch)
                if self.left:  # its loop; nothing concerns this worker until the next phase
                    self.left, self.collective_failed, self.stale = False, True, list(self.held)
                    break
        if self.collective_failed:
            self.held.clear()
        assert self.phase is not None or not self.job.coordinator.job.samples, "it ends without the job's state"
        self._tell(control.Bye())
        self.finished = True

    def _follow(self, message: control.ToWorker, epoch: int) -> Generator[Any, Any, Any]:
        """Do what a message asks for; the next message to follow."""
        match message:
            case control.Phase():
                self.collective_failed = False
                yield from self._enter(message)
            case control.Over() if self.drained:
                self._tell(control.Bye(early=True))
                self.alive = False
            case _ if self.collective_failed:  # it belongs to a phase that has failed for this rank
                pass
            case control.SynchronousSteps():
                self._expect_all_inside()
                yield from self._synchronous(message, epoch)
            case control.Go() if not self.awaits_answers:
                self._expect_all_inside()
                return (yield from self._steps_ahead(message))
            case control.Go() if self.roams:
                self._expect_all_inside()
                return (yield from self._local_step(message))
            case control.Go():
                return (yield from self._step(message, epoch))
            case control.TakePart():
                yield from self._meet(message)
            case control.Over():
                self._tell_at_end(epoch)
            case control.Refused(reason=reason):
                assert self.phase is None, reason
                self.alive = False
        return message if self.left else (yield None)

    def _enter(self, phase: control.Phase) -> Steps:
        self.phase, self.sample_ranges, self.records = phase, deque[SampleRange](), b""
        policy = parse_policy(phase.policy)
        self.roams, self.asks_first = runtime_placement(policy) == "coordinator", policy.traits.cancels
        self.awaits_answers = policy.traits.waits
        self.measures, self.completed = policy.traits.placement == "every_rank", 0
        if runtime_placement(policy) == "every_rank":
            cluster = self.job.traces[-1][1]
            self.schedule = LocalSchedule(policy, cluster, phase.members, self.rank, phase.policy_state)
        if phase.may_refuse and self.rank == self.job.against.get(phase.policy):
            self._break(PolicyError("train.py:3: no"), 0)
            return
        if phase.back_to is not None:
            self.held.clear()
            self.job.keep_state(phase.contributors)
        groups = ["build"] * (runtime_placement(policy) != "servers" or bool(phase.contributors))
        for exchange in [*groups, *["align"] * bool(phase.contributors)]:
            if not (yield from self._exchange((exchange, phase.number), self.held if exchange == "align" else [])):
                self._poison(0)
                return
        self.job.move_state(self.rank, phase)
        self.job.inside[phase.number].add(self.rank)
        self._tell(control.Entered(phase.number))

    def _expect_all_inside(self) -> None:
        """Nobody steps on its replica before all members have entered, and it has the job's state."""
        assert self.phase is not None
        assert self.job.inside[self.phase.number].issuperset(self.phase.members), self.job.describe()
        assert self.rank in self.job.fresh - self.job.back, self.job.describe()
        self.job.steps_begin()

    def _step(self, go: control.Go, epoch: int) -> Generator[Any, Any, Any]:
        """One arbitrated step; what has arrived meanwhile is looked at before the push."""
        if self._leaves():
            self.left = True
            return go
        self.sample_ranges.extend(go.sample_ranges)
        sample_range = self.sample_ranges.popleft()
        if self.job.random.random() < self.job.skip:
            self._tell(control.Skipped(go.number, sample_range.samples))
        elif not (self.inbox and isinstance(self.inbox[0], control.Cancelled)):
            self.job.pushed[self.rank, go.number] = sample_range
            self._tell(control.Pushed(go.number, sample_range.samples, *self.job.measured(self.rank)))
        return (yield None)

    def _local_step(self, go: control.Go) -> Generator[Any, Any, Any]:
        """One step on the worker's own replica; where it can be cancelled, after the coordinator has accepted it."""
        if self._leaves():
            self.left = True
            return go
        self.sample_ranges.extend(go.sample_ranges)
        sample_range = self.sample_ranges.popleft()
        if self.job.random.random() < self.job.skip:
            self._tell(control.Skipped(go.number, sample_range.samples))
            return (yield None)
        if not self.asks_first:
            self.held.append(sample_range)
        self._tell(control.LocalStepDone(go.number, sample_range.samples, self.job.random.random(), 0.1))
        if self.asks_first:
            yield from self._await_answer(go, sample_range)
        return (yield None)

    def _steps_ahead(self, go: control.Go) -> Generator[Any, Any, Any]:
        """Steps on the worker's own replica without an answer, until a `Halt` or the last mini-batch."""
        number, message = go.number, go
        self.sample_ranges.extend(go.sample_ranges)
        while not (self.inbox and not isinstance(self.inbox[0], control.Go | control.Halt)):
            if self._leaves():
                self.left = True
                return message
            yield ALONE
            while self.inbox and isinstance(self.inbox[0], control.Go | control.Halt):
                if self._is_halted(self.inbox.popleft(), number):
                    return (yield None)
            sample_range = self.sample_ranges.popleft()
            if self.job.random.random() < self.job.skip:
                self._tell(control.Skipped(number, sample_range.samples))
            else:
                self.held.append(sample_range)
                self._tell(control.LocalStepDone(number, sample_range.samples, self.job.random.random(), 0.0))
            number += 1
            while not self.sample_ranges:
                message = yield None
                if not isinstance(message, control.Go | control.Halt):
                    return message
                if self._is_halted(message, number):
                    return (yield None)
        return (yield None)

    def _is_halted(self, message: control.ToWorker, number: int) -> bool:
        """Whether it stands; otherwise it has been granted more."""
        if isinstance(message, control.Go):
            self.sample_ranges.extend(message.sample_ranges)
            return False
        self.sample_ranges.clear()
        self._tell(control.Halted(number))
        return True

    def _await_answer(self, go: control.Go, sample_range: SampleRange) -> Steps:
        """Make the step unless it was cancelled; what comes before the answer is followed after it."""
        before = []
        while True:
            message = yield None
            if isinstance(message, control.Accepted | control.Cancelled) and message.number == go.number:
                break
            before.append(message)
            if isinstance(message, control.Phase):
                break
        if not isinstance(message, control.Cancelled):
            self.held.append(sample_range)
        self.inbox.extendleft(reversed(before))

    def _meet(self, merge: control.TakePart) -> Steps:
        assert self.phase is not None
        parts = {*(merge.sync.workers or self.phase.members), *(merge.sync.adopters or ())}
        if (
            yield from self._exchange(
                ("meet", self.phase.number, merge.number), self.held if self.rank in parts else []
            )
        ):
            self._tell(control.TookPart(merge.number))
        else:
            self._poison(1)

    def _exchange(self, key: tuple[Any, ...], offer: list[SampleRange]) -> Generator[Any, Any, bool]:
        """Take part in a collective; whether it succeeded."""
        self.offers[key] = list(offer)
        return bool((yield key))

    def _synchronous(self, start: control.SynchronousSteps, epoch: int) -> Steps:
        assert self.phase is not None
        self.plan = EpochPlan(start.ranges, len(self.phase.members), start.batch_size, start.least, start.least_even)
        try:
            self.schedule.start(self.plan, start.shares)
        except PolicyError as error:
            self._break(error, 0)
            return
        self.drawn: list[tuple[SampleRange, ...]] = []
        self.records, self.token, self.completed = b"", control.Token(-1, stop=False, tell=-1), 0
        self.in_flight.clear()
        while not self.schedule.done:
            if self._leaves():
                self.left = True
                return
            stop = yield from self._step_in_lockstep(self.schedule.step)
            if stop or self.collective_failed:
                return
            if self.drained and self.asked_in != self.phase.number and not self.schedule.done:
                self.asked_in = self.phase.number
                self._tell(control.AtEnd(epoch, self.phase.number, stops=True))
        self._tell_at_end(epoch)

    def _step_in_lockstep(self, step: int) -> Generator[Any, Any, bool]:
        """Whether there is a stop after it."""
        last, gradients = step == self.plan.steps - 1, self.schedule.exchange == "gradients"
        while len(self.drawn) < min(step + 1 + self.ahead, self.plan.steps):
            self.drawn.append(self.schedule.draw(len(self.drawn))[0])
        batch = self.drawn[step]
        samples = sum(sample_range.samples for sample_range in batch)
        skipped = self.job.skip > 0 and self.job.random.random() < self.job.skip
        batch, self.skipping = ((), samples) if skipped else (batch, 0)
        self.held.extend(batch)
        if self.measures and not (yield from self._exchange_records(step)):
            self.held = [sample_range for sample_range in self.held if sample_range not in batch]
            self._poison(step)
            return False
        if not last and self.token.step < step:
            self._flush()
            token = yield None
            assert isinstance(token, control.Token), token
            assert token.step >= step, (token, step)
            self.token = token
            if token.shares is not None:
                assert token.since >= len(self.drawn), "shares of a mini-batch that is drawn do not change"
                assert self.schedule.shares is not None
                self.schedule.shares.change(token.since, token.shares)
        stop = self.token.stop and self.token.step == step
        try:
            sync = self.schedule.advance(unpacked(self.records) or None)
        except PolicyError as error:
            self.held = [sample_range for sample_range in self.held if sample_range not in batch]
            self._break(error, step)
            return False
        self.reached, self.shared = 0, False
        if gradients:
            if self.owes_word:  # all do so while they wait for it
                self._flush()
            if not (yield from self._exchange(self._key(step), self.held)):
                self.held.clear()
                self._poison(step)
                return False
            self.reached = step + 1
        elif not (yield from self._combine(step, sync, batch, stop or last)):
            self._poison(step + 1, self.reached, self.shared, skipped)
            return False
        step_s = samples * (1.0 + self.rank % 3)
        made = control.Stepped(
            step, samples, step_s, self.reached, self.shared, skipped, records=self.records, at_s=self.job.clock
        )
        self.untold.append(made)
        self.completed, self.skipping = step + 1, 0
        if not last and step == self.token.tell:
            self.owes_word = True
            if step >= self.token.step or self.schedule.exchange != "gradients":
                self._flush()
        return stop

    def _exchange_records(self, step: int) -> Generator[Any, Any, bool]:
        """Tell the others what this rank has measured; whether it knows what they have."""
        assert self.phase is not None
        key = self._key(step, "records")
        self.job.records[key, self.rank] = control.MeasuredStep(self.job.random.random())
        if not (yield from self._exchange(key, [])):
            return False
        self.records = b"".join(packed(self.job.records[key, member]) for member in self.phase.members)
        return True

    def _combine(
        self, step: int, sync: Sync | None, batch: Sequence[SampleRange], closing: bool
    ) -> Generator[Any, Any, bool]:
        """Carry out what was decided; whether every exchange succeeded."""
        if sync is not None and sync.what == "gradients":
            self.shared = yield from self._exchange(self._key(step, "share"), list(batch))
            if not self.shared:
                return False
        if not (yield from self._merge(lambda t: t.due <= step)):
            return False
        equal = False
        if sync is not None and sync.what != "gradients":
            if not (yield from self._merge(lambda t: t.fragment == sync.fragment or not sync.fragment)):
                return False
            self.in_flight.append(Travelling(step + sync.delay, step, sync.fragment, list(self.held)))
            equal = not sync.delay and not sync.fragment
            if not (yield from self._merge(lambda t: t.due <= step)):
                return False
        if not closing or equal:
            return True
        if not (yield from self._merge(lambda t: True)):
            return False
        if not (yield from self._exchange(self._key(step, "mean"), self.held)):
            return False
        self.reached = step + 1
        return True

    def _merge(self, which: Callable[[Travelling], bool]) -> Generator[Any, Any, bool]:
        """Complete exchanges under way; whether they succeeded."""
        for one in [t for t in self.in_flight if which(t)]:
            self.in_flight.remove(one)
            if not (yield from self._exchange(self._key(one.started, "sync"), one.offer)):
                return False
            self.reached = max(self.reached, one.started + 1)
        return True

    def _key(self, step: int, kind: str = "step") -> tuple[Any, ...]:
        assert self.phase is not None
        return kind, self.phase.number, self.plan.ranges, step

    @property
    def untold_skipped(self) -> int:
        """Samples of synchronous steps that it skips and has not told of."""
        return self.skipping + sum(message.samples for message in self.untold if message.skipped)

    def _leaves(self) -> bool:
        return self.job.random.random() < self.job.leave

    def _poison(self, completed: int, exchanged: int = 0, shared: bool = False, skipped: bool = False) -> None:
        assert self.phase is not None
        self.collective_failed = True
        told = exchanged, shared, self.records, False, skipped
        self._tell(control.CollectiveFailed(self.phase.number, completed, "", *told))
        self.skipping = 0

    def _break(self, error: PolicyError, completed: int) -> None:
        """The policy has failed here; if no other can take its place, the job ends with its error."""
        assert self.phase is not None
        self.collective_failed = True
        told = control.CollectiveFailed(self.phase.number, completed, str(error), records=self.records, broken=True)
        try:
            self._tell(told)
        except PolicyError:
            raise error from error.__cause__

    def _tell_at_end(self, epoch: int) -> None:
        assert self.phase is not None
        self._tell(control.AtEnd(epoch, self.phase.number))

    def _tell(self, message: control.ToCoordinator) -> None:
        self._flush()
        self.job.coordinator.receive(self.rank, message)

    def _flush(self) -> None:
        """Tell of steps that were held back."""
        self.owes_word = False
        untold, self.untold = self.untold, []
        for message in untold:
            self.job.coordinator.receive(self.rank, message)
