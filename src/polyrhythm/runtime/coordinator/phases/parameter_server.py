"""A phase on the parameter servers, under a policy that the coordinator runs: gradients arrive at the servers, and
the policy says who goes on.
"""

import math
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

from polyrhythm.core import Alarm, Cluster, Exchange, LeftReason, Policy, Proceed, Report, Sync, Ticket, Wake
from polyrhythm.core.misuse import deadlocked
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseDriver, PhaseKind
from polyrhythm.runtime.wire.protocol import (
    AtEnd,
    Cancelled,
    CollectiveFailed,
    Go,
    LocalStepDone,
    Over,
    Pushed,
    Skipped,
    ToCoordinator,
)
from polyrhythm.runtime.wire.shard_protocol import GroupSettings


class GradientArrival(NamedTuple):
    sample_range: SampleRange
    samples: int
    staleness: int
    settings: GroupSettings


class ParameterServerPhase(PhaseKind):
    """Runs one policy over pushes, one event at a time.

    To stop, it lets every step in flight arrive, applies each as it arrives, and sends no further `Go`. At the end of a
    policy that `drops` them it cancels them instead.
    """

    runs: ClassVar[bool] = True
    admits: ClassVar[bool] = True
    exchange: ClassVar[Exchange] = "gradients"
    """Kind of step that it can run."""

    def __init__(self, number: int, job: Job, policy: Policy[Any], cluster: Cluster) -> None:
        super().__init__(number)
        self._job = job
        self._driver = PhaseDriver(policy, cluster, self, job)
        self._stopping = self._held = False
        self._runs = -1
        self._arrived: dict[Ticket, GradientArrival] = {}
        """Every gradient that has arrived and is not yet applied or dropped."""

    # -- what the coordinator asks ---------------------------------------------------------------------------------

    def start(self) -> None:
        for member in self._job.members.values():
            member.at_end, member.batch_size = False, None
        self._job.workload.attend(self._job.present)
        self._driver.join(self._job.present, self._job.clock())

    def join(self, worker: int) -> None:
        """A newcomer; where all others are through with the epoch, it goes on with them (see `Joined`)."""
        self._job.workload.join((worker,))
        if self._job.ledger.accounts or self._job.present == (worker,):
            self._driver.join((worker,), self._job.clock())
        elif not self._stopping:
            self._job.effects.send(worker, Over(self._job.epoch))

    def pushed(self, worker: int, message: Pushed) -> None:
        member = self._job.members[worker]
        member.step = None
        staleness = self._job.version - (member.read_version if message.read is None else message.read)
        sample_range = member.sample_ranges.popleft()
        report, ticket = self._book(worker, message, staleness)
        self._arrived[ticket] = GradientArrival(sample_range, message.samples, staleness, message.settings)
        if self._stopping:
            self._apply_late(worker)
        else:
            self._driver.tell(report)
        if self.drops and self.stops_by_itself:
            self._driver.drop_running()
        account = self._job.ledger.accounts.get(worker)
        self.goes_on = not self.watched and account is not None and account.running is not None

    def skipped(self, worker: int, message: Skipped) -> None:
        """A step came to nothing on its worker; it makes another one, and for the policy that is still the same."""
        self.goes_on = False
        member = self._job.members[worker]
        member.step = None
        member.sample_ranges.popleft()
        self._job.skipped_samples += message.samples
        self._job.ledger.skip(worker)
        if self._stopping:
            return
        self._driver.start_again(Proceed((worker,), self.exchange), self._job.clock())

    def refusal(self, worker: int, message: ToCoordinator) -> str:
        if isinstance(message, CollectiveFailed) and message.broken:
            return "of a policy that is run here, and not by it"
        busy = worker in self._job.ledger.accounts
        early = isinstance(message, AtEnd) and message.phase == self.number and busy and not message.early
        return "before its epoch was over" if early else ""

    def lost(self, worker: int, member: Member, reason: LeftReason) -> None:
        """A worker is gone; what it had in hand goes to the others."""
        self._job.give_back(member.sample_ranges)
        self._job.workload.leave(worker)
        if worker in self._job.ledger.accounts:
            if reason == "removed":  # it has gone between two steps
                self._job.take_back_unbegun((worker,))
            self._driver.leave(worker, self._job.clock(), reason)

    def exhausted(self, worker: int) -> None:
        member = self._job.members[worker]
        self._job.take_back(member)
        member.step = None
        if worker in self._job.ledger.accounts:
            self._driver.leave(worker, self._job.clock(), "finished")

    def alarm(self) -> None:
        if not self._stopping:
            self._driver.tell(Alarm(self._job.clock()))

    def refuse_deadlock(self) -> None:
        """Everyone waits, and neither an alarm nor a worker is to come: the policy would be told nothing more.

        Who is to come is planned, or connected and not ready yet. A policy that waits for others cannot be told from
        one that has forgotten somebody.
        """
        job, driver, waiting = self._job, self._driver, self._job.ledger.accounts
        if self._stopping or self._somebody_runs() or not waiting or driver.silent or job.alarms or job.awaited:
            return
        if all(member.ready is not None for member in job.members.values()):
            driver.give_up(deadlocked(driver.policy, job.clock(), sorted(waiting), job.workload.left))

    def request_stop(self) -> None:
        self._stopping = True

    @property
    def standing(self) -> bool:
        return self._stopping and all(a.running is None for a in self._job.ledger.accounts.values())

    @property
    def left(self) -> int:
        return self._job.workload.left

    @property
    def outstanding(self) -> tuple[SampleRange, ...]:
        """Granted, or arrived and not applied."""
        granted = (sample_range for member in self._job.members.values() for sample_range in member.sample_ranges)
        return *granted, *(arrival.sample_range for arrival in self._arrived.values())

    def finish(self) -> None:
        """Apply what is pending; sample ranges that were granted ahead are void."""
        self._driver.settle()
        for ticket, arrival in self._arrived.items():  # booked by a policy that has failed, and never applied
            self._job.give_back([arrival.sample_range])
            self._job.effects.drop([ticket])
        self._arrived.clear()
        for member in self._job.members.values():
            self._job.take_back(member)
        self._job.close_accounts()

    # -- what the policy decides (see `Effects`) -------------------------------------------------------------------

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        arrivals = [self._arrived.pop(ticket) for ticket in tickets]
        weights = decision.weights or (1.0,) * len(tickets)
        staleness = [arrival.staleness for arrival in arrivals]
        self._job.samples += sum(arrival.samples for arrival in arrivals)
        self._job.effects.apply(tickets, weights, staleness, arrivals[-1].settings)
        self._job.version += 1
        if self.end_samples < math.inf:
            self._stop_if_served()

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """Grant sample ranges and let the worker read; one for whom there are none is told that its epoch is over."""
        if self._held:
            return False
        member = self._job.members[ticket.worker]
        if decision.settings is not None:
            member.batch_size = decision.settings.batch_size
        if member.ready is not None and member.ready.own:
            self._job.supply(member.ready)
        granted = self._grant(ticket.worker, member)
        if not member.sample_ranges:
            self._job.effects.send(ticket.worker, Over(self._job.epoch))
            self._driver.finish(ticket.worker)
            return False
        member.read_version = self._job.version
        member.step = member.granted = ticket.number
        settings = asdict(decision.settings, dict_factory=given) if decision.settings else None
        message = Go(ticket.number, self._job.version, granted, not self._job.workload.left, settings)
        self._job.effects.send(ticket.worker, message)
        return True

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Drop gradients, so that their positions are processed again; tell the workers of steps in flight."""
        self._job.effects.drop(tickets)
        for ticket in tickets:
            member = self._job.members.get(ticket.worker)
            if ticket in self._arrived:
                self._job.workload.give_back(self._arrived.pop(ticket).sample_range)
            elif member is not None and member.step == ticket.number:
                member.step = None
                self._job.workload.give_back(member.sample_ranges.popleft())
                self._job.effects.send(ticket.worker, Cancelled(ticket.number))

    def stop(self, workers: tuple[int, ...]) -> None:
        raise AssertionError("every worker here waits for answers")

    def take_back_decisions(self) -> None:
        """Steps of which no worker knows are none, and those that were cancelled without a word are cancelled."""
        for worker, account in self._job.ledger.accounts.items():
            member = self._job.members.get(worker)
            step = None if member is None else member.step
            if account.running is not None and account.running.number != step:
                self._job.ledger.take_back(account.running)
            elif account.running is None and step is not None:
                self.cancel((worker,), [Ticket(worker, step, self.exchange)])

    def wake(self, decision: Wake) -> None:
        self._job.alarms += 1
        self._job.effects.wake(decision.time_s)

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Apply what a worker leaves behind."""
        self.sync(decision, tickets)

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """Drop what a worker leaves behind."""
        self.cancel((worker,), tickets)

    # -- details ---------------------------------------------------------------------------------------------------

    def _somebody_runs(self) -> bool:
        """Who ran at the last look is looked at first, and then the last ranks: a round ends mostly with these."""
        accounts = self._job.ledger.accounts
        known = accounts.get(self._runs)
        if known is None or known.running is None:
            self._runs = next((worker for worker in reversed(accounts) if accounts[worker].running is not None), -1)
        return self._runs >= 0

    def _stop_if_served(self) -> None:
        """After the update that serves the share of this phase nobody is started, if enough is left for another."""
        if self._job.done_samples >= self.end_samples and self._job.serves_another(self.left):
            self._stopping = self.stops_by_itself = self._held = True

    def _book(self, worker: int, message: Pushed | LocalStepDone, staleness: int) -> tuple[Report, Ticket]:
        clock, ticket = self._job.ledger.report(worker)
        report = Report(
            worker,
            clock,
            self._job.clock(),
            message.samples,
            message.step_s,
            message.transfer_s,
            staleness,
            message.loss,
            message.grad_sq_norm,
        )
        return report, ticket

    def _apply_late(self, worker: int) -> None:
        """While stopping, a gradient is applied when it arrives, whatever the policy."""
        self._driver.untold[worker] += 1
        decision = Sync((worker,))
        self.sync(decision, self._job.ledger.sync(decision))

    def _lead(self, worker: int) -> int:
        """Steps that a worker may be ahead of the answer to its report."""
        del worker
        return 0

    def _grant(self, worker: int, member: Member) -> tuple[SampleRange, ...]:
        """As many further sample ranges as the worker fetches ahead, and one."""
        assert member.ready is not None, "a worker steps only after Ready"
        granted, ahead = [], member.ready.ahead + self._lead(worker)
        while len(member.sample_ranges) <= ahead:
            whole = self._job.workload.whole(member.batch_size or member.ready.batch_size, worker)
            sample_range = self._job.workload.hand_out(whole, worker)
            if sample_range is None:
                break
            granted.append(sample_range)
            member.sample_ranges.append(sample_range)
        return tuple(granted)


def given(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in items if value is not None}
