"""The virtual cluster: runs one policy from the first `Joined` to the end of its workload.

A step under "gradients" is pull, compute, push, report; under "replicas" compute and report. What a `Sync` exchanges
takes its own time, and a worker that is released meanwhile starts when it has the result. The parameters belong to
the `Numerics`, which is told what happens in order of virtual time and takes none of it.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from polyrhythm.core import (
    Alarm,
    Cancel,
    Decision,
    Event,
    Joined,
    Ledger,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Ticket,
    TraceWriter,
    Wake,
)
from polyrhythm.errors import PolicyError
from polyrhythm.sim.clock import Calendar, Reminder
from polyrhythm.sim.cluster.faults import Leave
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.sim.job import SimJob as SimJob
from polyrhythm.sim.job import deadlock, transport_plan
from polyrhythm.sim.steps import StepRunner
from polyrhythm.sim.transport import Transport
from polyrhythm.sim.worker import WorkerState
from polyrhythm.telemetry import Meter

ALARMS = 100_000
"""Alarms without a report between them after which a policy is taken to wait for nothing."""


class Engine:
    """One run; `run` may be called once.

    Args:
        job: what is run.
        meter: what measures it.
        writer: records it.
    """

    def __init__(self, job: SimJob, meter: Meter, writer: TraceWriter | None = None) -> None:
        self.job, self.meter, self.writer = job, meter, writer
        self.policy, self.numerics, self.workload = job.policy, job.numerics, job.workload
        self.state = job.policy.init(job.cluster)
        self.ledger = Ledger()
        self.calendar = Calendar(job.limit_s)
        self.worker_states: dict[int, WorkerState] = {}
        self.leaving: deque[WorkerState] = deque()
        self.retired: list[int] = []
        self.leave_steps = {(leave.worker, leave.step): leave for leave in job.plan.leaves if leave.step is not None}
        injected, compression = job.numerics.injected_bytes, job.numerics.compression
        self.transport = Transport(self.calendar, job.network, meter, self._has_average, compression)
        self.steps = StepRunner(self.calendar, self.transport, meter, job.cluster.batch_size, injected, self._arrive)
        self.obey_traits()
        self.alarms = 0
        self.rule = job.policy.rule(self.state)
        self.held_until_s = 0.0
        self.mark: float = math.inf
        self.at_mark: Callable[[], float] = lambda: math.inf
        self.stopped = self.apart = False

    def obey_traits(self) -> None:
        """Let messages go as the policy's traits say."""
        self.transport_plan = transport_plan(self.policy, self.job.network)
        self.transport.ring, self.transport.coordinated = self.transport_plan.ring, self.transport_plan.coordinated
        self.steps.reports, self.steps.waits = self.transport_plan.reports, self.transport_plan.waits

    def watch(self, first: float, at_mark: Callable[[], float]) -> None:
        """Call `at_mark` after the event that brings `first` samples into the parameters; it returns the next mark."""
        self.mark, self.at_mark = first, at_mark

    def run(self) -> None:
        """To the end of the workload, of the time limit, or until `stopped`."""
        try:
            self.begin()
            self.go_on()
        finally:
            self.close()

    def begin(self) -> None:
        """The first workers join."""
        self._appoint_faults()
        absent = {join.worker for join in self.job.plan.joins}
        self._join(tuple(worker for worker in range(self.job.cluster.workers) if worker not in absent))

    def go_on(self) -> None:
        """As `run`; after a stop it may be called again."""
        calendar, transport, meter = self.calendar, self.transport, self.meter
        while not self.stopped and (self.worker_states or self.workload.left):
            if transport.timers:
                transport.settle()
            if not calendar.advance():
                self._refuse_deadlock()
                return
            if self.leaving:
                self._retire_finished()
            if meter.samples >= self.mark:
                self.mark = self.at_mark()

    # The policy.

    def _deliver(self, event: Event) -> None:
        self._ask(event)
        self._retire_finished()

    def _ask(self, event: Event) -> None:
        """Tell the policy, and carry out what it decides."""
        try:
            self.state, decisions = self.policy.decide(self.state, event)
        except Exception as error:
            raise PolicyError(f"policy {self.policy.spec} raised {error!r} at {event}") from error
        if not isinstance(decisions, tuple):
            raise PolicyError(f"policy {self.policy.spec} returned {decisions!r}, which is not a tuple of decisions")
        rule = self.policy.rule(self.state)
        if rule is not self.rule and rule != self.rule:
            self._switch(rule)
        for decision in decisions:
            if isinstance(decision, Sync):
                self._sync(decision)
            elif isinstance(decision, Proceed):
                self._proceed(decision)
            else:
                self._carry_out_rare(decision)
        if self.writer is not None:
            self.writer.write(event, decisions)

    def _carry_out_rare(self, decision: Decision) -> None:
        match decision:
            case Cancel(workers=workers):
                self._cancel(workers)
            case Wake(time_s=time_s):
                alarm_s = max(time_s, self.calendar.now_s)
                self.calendar.at(alarm_s, self._alarm, Reminder(alarm_s))
            case _:
                raise PolicyError(f"policy {self.policy.spec} returned {decision!r}, which is not a decision")

    def _switch(self, rule: Policy[Any]) -> None:
        """Another rule is in force: whoever starts next stands still for as long as a switch takes."""
        self.rule = rule
        self.meter.switches += 1
        self.held_until_s = self.calendar.now_s + self.job.switch_cost_s

    def _alarm(self, timer: Reminder) -> None:
        self.alarms += 1
        if self.alarms > ALARMS:
            raise PolicyError(
                f"policy {self.policy.spec} has woken itself {ALARMS:,} times since the last report; "
                "release somebody, or ask for an alarm when there is something to wait for"
            )
        self._deliver(Alarm(timer.about))

    # Steps.

    def _proceed(self, decision: Proceed) -> None:
        workers = decision.workers
        ready = tuple([worker for worker in workers if self._lend(worker, decision)])
        if len(ready) < len(workers):
            decision = Proceed(ready, decision.exchange, decision.settings)
        for ticket in self.ledger.proceed(decision):
            self._release(self.worker_states[ticket.worker], ticket, decision)

    def _lend(self, worker: int, decision: Proceed) -> bool:
        """Reserve a mini-batch; False if none is left, so that the worker goes instead."""
        account = self.ledger.accounts.get(worker)
        if account is None or account.running is not None:
            return True  # which the ledger refuses
        worker_state = self.worker_states[worker]
        if decision.settings is not None:
            worker_state.batch_size = decision.settings.batch_size or self.job.cluster.batch_size
        worker_state.sample_range = self.workload.hand_out(worker_state.batch_size, worker)
        if worker_state.sample_range is not None:
            return True
        worker_state.finished = True
        if worker_state.averaging is None:
            self.leaving.append(worker_state)
        return False

    def _release(self, worker_state: WorkerState, ticket: Ticket, decision: Proceed) -> None:
        assert worker_state.sample_range is not None
        self.numerics.start(ticket, worker_state.sample_range, decision.settings)
        worker_state.version = self.meter.updates
        worker_state.through_server = ticket.exchange == "gradients" and not self.transport_plan.ring
        if self.leave_steps and (leave := self.leave_steps.pop((worker_state.worker, worker_state.started), None)):
            self.calendar.at(self.calendar.now_s, self._depart, Reminder(leave))
        worker_state.started += 1
        if worker_state.may_start:
            worker_state.awaits_answer = self.transport_plan.coordinated and self.transport_plan.waits
            self._start(worker_state)
        else:
            worker_state.released = True

    def _start(self, worker_state: WorkerState) -> None:
        """Start a step, at the earliest when a switch is over."""
        if self.held_until_s > self.calendar.now_s:
            self.calendar.at(self.held_until_s, self.steps.start, worker_state)
        else:
            self.steps.start(worker_state)

    def _has_average(self, worker_state: WorkerState) -> None:
        """The result of a `Sync` has come: the worker may go on, or go."""
        if worker_state.finished and worker_state.averaging is None:
            self.leaving.append(worker_state)
        elif worker_state.released and worker_state.may_start:
            worker_state.released = False
            self._start(worker_state)

    def _arrive(self, worker_state: WorkerState) -> None:
        """A step is complete."""
        sample_range, worker_state.sample_range, self.alarms = worker_state.sample_range, None, 0
        assert sample_range is not None
        clock, ticket = self.ledger.report(worker_state.worker)
        loss, grad_sq_norm = self.numerics.report(ticket)
        samples, staleness = sample_range.stop - sample_range.start, 0
        if ticket.exchange == "gradients":
            staleness = self.meter.updates - worker_state.version
            worker_state.gradients.append(sample_range)
        else:
            worker_state.local.append(sample_range)
            self.meter.samples += samples
        report = Report(
            worker_state.worker,
            clock,
            self.calendar.now_s,
            samples,
            worker_state.compute_s,
            worker_state.transfer_s,
            staleness,
            loss,
            grad_sq_norm,
        )
        worker_state.compute_s = worker_state.transfer_s = 0.0
        self.meter.report(report, ticket.exchange)
        self._deliver(report)

    # Combining and dropping.

    def _sync(self, decision: Sync) -> None:
        tickets = self.ledger.sync(decision)
        self.numerics.sync(decision, tickets)
        self.meter.sync(decision)
        for worker in (*decision.workers, *(decision.adopters or ())):
            self._take(self.worker_states[worker], decision)
        if self.transport_plan.ring or not tickets:
            self.transport.average(decision, self.worker_states)

    def _take(self, worker_state: WorkerState, decision: Sync) -> None:
        """What a worker has pending is combined, or given up for the result."""
        if decision.what != "gradients":
            worker_state.local.clear()
        elif worker_state.gradients:
            sample_range = worker_state.gradients.popleft()
            self.meter.samples += sample_range.stop - sample_range.start
        else:
            worker_state.local.pop()

    def _cancel(self, workers: tuple[int, ...]) -> None:
        self.numerics.void(self.ledger.cancel(workers))
        for worker in workers:
            worker_state = self.worker_states[worker]
            worker_state.finished = False
            self._abandon(worker_state)
            self.meter.cancel(worker)

    def _abandon(self, worker_state: WorkerState) -> None:
        """Whatever the worker has in flight and pending is for others to process."""
        for sample_range in worker_state.gradients:
            self.workload.give_back(sample_range)
        worker_state.gradients.clear()
        if worker_state.sample_range is None:
            return
        self.workload.give_back(worker_state.sample_range)
        worker_state.sample_range = None
        if worker_state.released:
            worker_state.released = False
        else:
            self.steps.interrupt(worker_state)

    # Coming and going.

    def _appoint_faults(self) -> None:
        for leave in self.job.plan.leaves:
            if leave.time_s is not None:
                self.calendar.at(leave.time_s, self._depart, Reminder(leave))
        for join in self.job.plan.joins:
            self.calendar.at(join.time_s, self._join_late, Reminder(join.worker))

    def _join(self, workers: tuple[int, ...]) -> None:
        job, now_s = self.job, self.calendar.now_s
        clock = self.ledger.join(workers)
        self.workload.join(workers)
        for worker in workers:
            slow = job.plan.slow.get(worker, ())
            self.worker_states[worker] = WorkerState(
                worker, job.durations[worker], job.bandwidths[worker], slow, job.cluster.batch_size
            )
        self.meter.join(workers, now_s)
        self._deliver(Joined(workers, now_s, clock))

    def _join_late(self, timer: Reminder) -> None:
        if timer.about not in self.worker_states:
            self._join((timer.about,))

    def _retire_finished(self) -> None:
        """Those for whom no mini-batch was left go, one by one, with what they have pending applied."""
        while self.leaving:
            worker_state = self.leaving.popleft()
            if worker_state.finished:
                self._ask(self._retire(worker_state))
        if isinstance(self.workload, MeetingWorkload):
            self._end_epoch(self.workload)

    def _end_epoch(self, workload: MeetingWorkload) -> None:
        """If all stand at the end of an epoch, their replicas become equal, and the next epoch begins."""
        if self.worker_states or not self.retired or not workload.left:
            return
        workers, self.retired = tuple(sorted(set(self.retired))), []
        begin_s = self.calendar.now_s + self.job.epoch_end_s
        if self.apart:
            self.numerics.sync(Sync(workers, "parameters"), [])
            begin_s += self.transport.meeting_s([self.job.bandwidths[worker] for worker in workers])
            self.apart = False
        workload.open_next()
        self.calendar.at(begin_s, self._begin_epoch, Reminder(workers))

    def _begin_epoch(self, timer: Reminder) -> None:
        self._join(timer.about)

    def _retire(self, worker_state: WorkerState) -> Left:
        tickets = self.ledger.settle(worker_state.worker)
        if tickets:
            rest = Sync((worker_state.worker,) * len(tickets))
            self.numerics.sync(rest, tickets)
            self.meter.sync(rest)
            self.meter.samples += sum(sample_range.samples for sample_range in worker_state.gradients)
        clock, _ = self.ledger.leave(worker_state.worker)
        self.retired.append(worker_state.worker)
        self.apart |= bool(worker_state.local)
        self._vacate(worker_state)
        return Left(worker_state.worker, self.calendar.now_s, clock, "finished")

    def _depart(self, timer: Reminder) -> None:
        """A worker goes with what it has in flight, pending and only in its replica."""
        leave: Leave = timer.about
        worker_state = self.worker_states.get(leave.worker)
        if worker_state is None:
            return
        clock, void = self.ledger.leave(leave.worker)
        self.workload.leave(leave.worker)
        self.numerics.void(void)
        self.numerics.leave(leave.worker)
        self._abandon(worker_state)
        for sample_range in worker_state.local:
            self.meter.samples -= sample_range.samples
            self.workload.give_back(sample_range)
        self._vacate(worker_state)
        now_s = self.calendar.now_s
        if leave.back_after_s is not None:
            self.calendar.at(now_s + leave.back_after_s, self._join_late, Reminder(leave.worker))
        self._deliver(Left(leave.worker, now_s, clock, leave.reason))
        self._call_back()

    def _call_back(self) -> None:
        """When the last worker dies, those that had finished come back for the mini-batches that it left."""
        if not self.worker_states and self.retired and self.workload.left:
            workers, self.retired = tuple(sorted(set(self.retired))), []
            self._join(workers)

    def _vacate(self, worker_state: WorkerState) -> None:
        self.transport.leave_average(worker_state)
        self.steps.book(worker_state)
        if not (
            worker_state.finished and isinstance(self.workload, MeetingWorkload)
        ):  # else it waits for the next epoch
            self.meter.leave(worker_state.worker, self.calendar.now_s)
        worker_state.serial += 1
        worker_state.finished = False
        del self.worker_states[worker_state.worker]

    def _refuse_deadlock(self) -> None:
        """Nothing is scheduled any more, or the time is up; with work left the former is somebody's mistake."""
        if self.calendar.appointments or self.calendar.now_s >= self.job.limit_s or not self.workload.left:
            return
        raise deadlock(self.policy, self.calendar.now_s, sorted(self.worker_states), self.workload.left)

    def close(self) -> None:
        """The end: drop what is in flight and what nobody combined."""
        for worker_state in self.worker_states.values():
            self.steps.book(worker_state)
        self.numerics.void(self.ledger.finish())
        self.meter.policy_figures = self.policy.figures(self.state)
