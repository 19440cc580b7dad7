"""A synchronous phase: every rank knows the decisions from clocks alone and takes them by itself.

The coordinator only follows: it shows the policy the same steps, for the trace and the ledger, and decides where all
stop. A rank completes a step only with a `Token` that covers it: for a window of one step or, where steps are short,
several. The first is sent at the start and the next when the first rank has completed all that are covered, of several
the first half: a whole step or more before anyone needs it. So the wait for it is free, and all ranks stop at the same
step. Ranks tell of their steps when the next token is due, not of each by itself: all of them, as each may be the only
one left. One that is told to stop, or is at the end of the plan, averages its replica with the others' first.
"""

from collections.abc import Container
from typing import Any, ClassVar

from polyrhythm.core import Cluster, LeftReason, Policy, Proceed, Report, Sync, Ticket, Wake
from polyrhythm.core.epoch_plan import EpochPlan, ShareSchedule, plan_of
from polyrhythm.core.token_window import TokenWindow
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import UsageError
from polyrhythm.policies import is_built_in
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member, Ranks
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseDriver, PhaseKind
from polyrhythm.runtime.coordinator.phases.rank_progress import RankProgress, StepOrder, count_samples
from polyrhythm.runtime.coordinator.phases.shares import check_shares
from polyrhythm.runtime.wire.protocol import AtEnd, CollectiveFailed, Stepped, SynchronousSteps, ToCoordinator, Token


class SynchronousPhase(PhaseKind):
    runs: ClassVar[bool] = True
    on_workers: ClassVar[bool] = True
    together: ClassVar[bool] = True

    def __init__(self, number: int, job: Job, policy: Policy[Any], cluster: Cluster) -> None:
        super().__init__(number)
        self._job = job
        self._driver, self._least = PhaseDriver(policy, cluster, self, job), cluster.least_share
        self._stopping = False
        self.plan: EpochPlan | None = None
        self.last_step: int | None = None
        self._members: tuple[int, ...] = ()
        self._progress: dict[int, RankProgress] = {}
        self._lost: dict[int, LeftReason] = {}
        self._shares: ShareSchedule
        self._wanted: tuple[int, ...] = ()

    # -- what the coordinator asks ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._members = self._job.present
        self._progress = {worker: RankProgress() for worker in self._members}
        self._lost = {}
        self._order = StepOrder(self._progress, self._lost, self._job.ledger)
        self._stop_at: int | None = None
        self._granted = -1
        self._shown_s = self._job.clock()
        self._pace = TokenWindow(self._shown_s)
        batch_size = self._batch_size()
        check_shares(self._driver.policy, self._job)
        least = self._least, self._job.least_even
        self.plan = plan_of(self._job.workload, self._members, batch_size, *least)
        self._shares, self._wanted = ShareSchedule(self.plan), tuple[int, ...]()
        self.last_step = self.plan.step_that_serves(self.end_samples - self._job.done_samples)
        self.stops_by_itself = self.last_step is not None
        self._driver.join(self._members, self._job.clock())
        if self._wanted:
            self._shares.change(0, self._wanted)
        start = SynchronousSteps(self._job.epoch, self.plan.ranges, batch_size, self._wanted, *least)
        for worker in self._members:
            self._job.members[worker].at_end = False
            self._job.effects.send(worker, start)
        self._send_tokens()

    def refusal(self, worker: int, message: ToCoordinator) -> str:
        if isinstance(message, CollectiveFailed) and message.broken and is_built_in(self._driver.policy):
            return f"of {self._driver.policy.spec}, which breaks no contract"
        progress, steps = self._progress.get(worker), 0 if self.plan is None else self.plan.steps
        if progress is None or worker in self._lost or progress.collective_failed:
            return "but makes no steps in this phase" if isinstance(message, Stepped) else ""
        match message:
            case Stepped(step=step, exchanged=exchanged):
                if step != progress.completed or step >= steps or exchanged > step + 1:
                    return f"for step {step} of {steps}, but is at step {progress.completed}"
            case CollectiveFailed(phase=phase, completed=completed, exchanged=exchanged) if phase == self.number:
                if not progress.completed <= completed <= steps or max(exchanged, message.shared) > completed:
                    return f"after {completed} of {steps} steps, but is at step {progress.completed}"
            case AtEnd(phase=phase, early=False, stops=False) if phase == self.number and progress.completed < steps:
                return f"after {progress.completed} of {steps} steps"
        return ""

    def stepped(self, worker: int, message: Stepped) -> None:
        progress = self._progress[worker]
        self._complete(progress, message, self._pace.time_of(worker, message.at_s, self._job.clock()))
        progress.exchange(message, message.step)
        if progress.completed + self._pace.ahead > self._granted:
            self._send_tokens()
        self._show_policy()

    def collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        """A rank stands still because an exchange has failed; it has done some steps by itself."""
        progress = self._progress[worker]
        progress.exchange(message, message.completed - 1)
        for step in range(progress.completed, message.completed):
            skipped = message.skipped and step + 1 == message.completed
            self._complete(progress, self._inferred(worker, step, skipped), self._job.clock())
        progress.collective_failed = True

    def returned(self, worker: int, message: Returned) -> None:
        """Ranks hear of shares ahead of the steps, so of those that one has made it knows all."""
        assert self.plan is not None
        progress = self._progress[worker]
        if message.completed > self.plan.steps:
            raise UsageError(f"rank {worker} tells of {message.completed} steps of {self.plan.steps}")
        for since, shares in message.shares[len(self._shares.since) - 1 :]:
            self._shares.change(since, shares)
        for step in range(message.completed):
            self._complete(progress, self._inferred(worker, step, step in message.skipped), self._job.clock())
        progress.exchanged, progress.shared = message.exchanged, {*message.shared}
        progress.collective_failed = True

    def lost(self, worker: int, member: Member, reason: LeftReason) -> None:
        """A rank is gone; the policy hears of it when the others stand and it is clear which steps of it counted."""
        del member
        if worker not in self._progress:  # it has come for the next phase
            return
        self._lost[worker] = reason
        self.request_stop()
        self._send_tokens()
        self._tell_loss(worker)

    def take_back(self, early: Ranks) -> None:
        for worker in early:
            self._lost.pop(worker, None)

    def request_stop(self) -> None:
        """Make the next token that is still to be sent the last."""
        self._stopping = True

    @property
    def started(self) -> bool:
        return self.plan is not None

    @property
    def standing(self) -> bool:
        """Whether every live rank waits for a new phase; at the epoch's end a rank waits for whatever comes."""
        return all(
            p.collective_failed or self._stop_at == p.completed - 1 or self._job.members[worker].at_end
            for worker, p in self._live()
        )

    @property
    def left(self) -> int:
        assert self.plan is not None
        return count_samples(self.plan.rest(self._furthest()))

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(worker for worker, _ in self._live())

    @property
    def apart(self) -> tuple[int, ...]:
        """Live ranks whose replicas differ, so that the job's state is their mean; none if those of all sound agree.

        Who has missed an exchange in which others have all that it had takes over what these have.
        """
        replicas = "replicas" in self._driver.policy.traits.exchanges
        equal = bool(self._whole) and self._exchanged >= self._furthest()
        return tuple(w for w, p in self._live() if p.exchanged == self._exchanged) if replicas and not equal else ()

    def may_end(self) -> bool:
        """The epoch may end once everyone stands at its end; what a lost rank had exchanged before counts."""
        self._catch_up()
        return True

    @property
    def sound(self) -> tuple[int, ...]:
        """Live ranks at the furthest step whose exchanges have all succeeded: their state is the job's."""
        return tuple(w for w, p in self._live() if p.completed == self._furthest() and not p.collective_failed)

    @property
    def newest(self) -> tuple[int, ...]:
        """Those whose mean the job's state is, or each of whom has it."""
        return self.apart or self._whole

    @property
    def _whole(self) -> tuple[int, ...]:
        """Who is sound; if nobody is, whoever had exchanged all that it had completed before the next exchange failed.

        One exchange may succeed for some and fail for others, as when a rank leaves right after it.
        """
        reached = (w for w, p in self._live() if p.completed == p.exchanged == self._furthest())
        return self.sound or tuple(reached)

    def finish(self) -> None:
        assert self.plan is not None
        exchanged, furthest = self._exchanged, self._furthest()
        self._job.give_back(self.plan.rest(furthest))
        for worker in self._lost:
            self._job.give_back(self._batches(worker, exchanged, furthest))
            completed = self._progress[worker].completed
            made = count_samples(self._made(worker, exchanged, completed))
            self._job.samples -= made
            self._job.skipped_samples -= count_samples(self._batches(worker, exchanged, completed)) - made
            unheard = [step for step in self._shared if step >= max(completed, exchanged)]
            self._job.samples += sum(self._samples(worker, step) for step in unheard)
        for worker, progress in self._live():
            self._job.give_back(self._batches(worker, max(exchanged, progress.completed), furthest))
        self._catch_up()
        failed = any(p.collective_failed or p.completed < furthest for p in self._progress.values())
        for worker, reason in self._lost.items():
            if worker in self._job.ledger.accounts:
                if not failed:
                    self._job.take_back_unbegun((worker,))
                    self._job.ledger.settle(worker)  # what the replicas had apart all have now
                self._driver.leave(worker, self._job.clock(), reason)
        if not failed:
            self._job.take_back_unbegun(tuple(self._job.ledger.accounts))
        self._driver.settle()
        self._job.close_accounts()

    def unsynchronised(self) -> dict[int, tuple[SampleRange, ...]]:
        """Positions that so far only the replica of one live rank has seen, because an exchange has failed."""
        return {worker: self._made(worker, self._exchanged, p.completed) for worker, p in self._live()}

    def of_newest(self) -> tuple[SampleRange, ...]:
        """The others have what they had all exchanged, and each its own steps."""
        others = {w: p for w, p in self._live() if w not in self.newest}
        if not others:
            return ()
        exchanged, end = max(p.exchanged for p in others.values()), self._exchanged if self.apart else self._furthest()
        had = {worker: max(exchanged, p.completed) for worker, p in others.items()}
        return tuple(r for w in self._members for r in self._made(w, had.get(w, exchanged), end))

    def _batches(self, worker: int, first: int, end: int, but: Container[int] = ()) -> tuple[SampleRange, ...]:
        """Positions of one rank from step `first` to step `end`, exclusive, that were not shared by themselves."""
        index, shared = self._members.index(worker), self._shared
        steps = (step for step in range(first, end) if step not in shared and step not in but)
        return tuple(sample_range for step in steps for sample_range in self._shares.batch(step, index))

    def _made(self, worker: int, first: int, end: int) -> tuple[SampleRange, ...]:
        """The same without those that its script skipped."""
        return self._batches(worker, first, end, self._progress[worker].skipped)

    def _samples(self, worker: int, step: int) -> int:
        return count_samples(self._shares.batch(step, self._members.index(worker)))

    # -- what the policy decides (see `Effects`): the ranks have done it already -------------------------------------

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        # The ranks have combined it among themselves.
        self._job.version += 1

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """The rank has started by itself, if the plan has a further step."""
        assert self.plan is not None
        progress = self._progress[ticket.worker]
        if progress.started >= self.plan.steps:
            self._driver.finish(ticket.worker)
            return False
        progress.started += 1
        self._order.began(ticket.worker)
        if decision.workers == self._members:
            self._wanted = decision.shares or ()
        return True

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Nothing is held here."""

    def stop(self, workers: tuple[int, ...]) -> None:
        raise AssertionError("every worker here waits for answers")

    def take_back_decisions(self) -> None:
        """The ranks see to it by themselves."""

    def wake(self, decision: Wake) -> None:
        raise AssertionError("the driver refuses alarms of policies that the coordinator does not run")

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """What the ranks had left they have combined."""
        self.sync(decision, tickets)

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """Nothing is held here."""

    # -- details ---------------------------------------------------------------------------------------------------

    def _batch_size(self) -> int:
        sizes = {m.ready.batch_size for m in self._job.members.values() if m.ready}
        return min(sizes)

    def _live(self) -> list[tuple[int, RankProgress]]:
        return [(w, p) for w, p in sorted(self._progress.items()) if w not in self._lost]

    def _witnesses(self) -> list[RankProgress]:
        """Ranks whose exchanges count: those alive, as one that only a lost rank has completed has changed nobody."""
        return [p for _, p in self._live()] or [*self._progress.values()]

    @property
    def _exchanged(self) -> int:
        """Steps after which all had the same."""
        return max((p.exchanged for p in self._witnesses()), default=0)

    @property
    def _shared(self) -> set[int]:
        return {step for p in self._witnesses() for step in p.shared}

    def _furthest(self) -> int:
        """Steps that are complete on the furthest live rank; if all have gone, those that all had completed."""
        if live := self._live():
            return max(p.completed for _, p in live)
        return max([self._exchanged, *(step + 1 for step in self._shared)])

    def _complete(self, progress: RankProgress, message: Stepped, time_s: float) -> None:
        progress.complete(message, time_s)
        if message.skipped:
            self._job.skipped_samples += message.samples
        else:
            self._job.samples += message.samples

    def _inferred(self, worker: int, step: int, skipped: bool = False) -> Stepped:
        """A step that must have happened, but whose message was replaced, or lost with its worker: skipped or not."""
        return Stepped(step, self._samples(worker, step), 0.0, skipped=skipped)

    def _catch_up(self) -> None:
        """An exchange that succeeded for one rank had everyone's contribution: complete those steps for all."""
        exchanged = self._exchanged
        for worker, progress in self._progress.items():
            for step in range(progress.completed, exchanged):
                self._complete(progress, self._inferred(worker, step), self._job.clock())
        while self._show_one_each():
            pass

    def _tell_loss(self, worker: int) -> None:
        """End the exchange in which the others would wait for a lost rank for ever.

        A rank whose script has left its loop has taken part in every exchange of the steps that it completed; the
        others may still be in the last of these, which succeeds.
        """
        left_at = [self._progress[worker].completed for worker, why in self._lost.items() if why == "removed"]
        self._job.effects.cut(f"rank {worker} is gone", max(left_at, default=0))

    def _send_tokens(self) -> None:
        """Send the token that is due; the last step of the plan needs none, because the epoch ends there."""
        assert self.plan is not None
        last = self.plan.steps - 2
        if self._stop_at is not None or self._granted >= min(self._furthest() + self._pace.ahead, last):
            return
        first, stop = self._granted + 1, self._stopping and self._granted >= 0
        end = first if stop else min(self._granted + self._pace.window(self._furthest(), self._job.clock()), last)
        if self.last_step is not None and first <= self.last_step <= end:
            end, stop = self.last_step, True
        token = Token(end, stop, end if stop else max(first, end - self._pace.ahead), *self._new_shares())
        self._granted, self._stop_at = end, end if stop else None
        for worker, _ in self._live():
            self._job.effects.send(worker, token)

    def _new_shares(self) -> tuple[int, tuple[int, ...]] | tuple[()]:
        """Shares that come into force with the token that is due, and from which step on.

        Whoever has not heard of it has completed no more than was granted before: it computes the next step at most,
        and its loader has drawn that and as many as it fetches ahead.
        """
        assert self.plan is not None
        since = self._granted + 2 + max(m.ready.ahead for m in self._job.members.values() if m.ready)
        if self._lost or self._wanted == self._shares.shares[-1] or since >= self.plan.steps:
            return ()
        self._shares.change(since, self._wanted)
        return since, self._wanted

    def _show_policy(self) -> None:
        """Show the policy what the ranks have done in the order in which they did, as far as nothing can be missing."""
        for worker in self._order.due():
            self._show(worker)

    def _show_one_each(self) -> bool:
        shown = False
        for worker, progress in self._progress.items():
            account = self._job.ledger.accounts.get(worker)
            if progress.unseen and account is not None and account.running is not None:
                self._show(worker)
                shown = True
        return shown

    def _show(self, worker: int) -> None:
        time_s, message = self._progress[worker].unseen.popleft()
        self._shown_s = max(self._shown_s, time_s)
        clock, _ = self._job.ledger.report(worker)
        self._driver.tell(self._report(worker, clock, self._shown_s, message))

    def _report(self, worker: int, clock: int, time_s: float, message: Stepped) -> Report:
        return Report(
            worker,
            clock,
            time_s,
            message.samples,
            message.step_s,
            loss=message.loss,
            wait_s=message.wait_s,
        )
