"""The virtual cluster: runs one policy from the first `Joined` to the end of its workload.

A step under "gradients" is pull, compute, push, report; under "replicas" compute and report. What a `Sync` exchanges
takes its own time, and a worker that is released meanwhile starts when it has the result. The parameters belong to
the `Numerics`, which is told what happens in order of virtual time and takes none of it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from polyrhythm.core import (
    Alarm,
    Driver,
    LeftReason,
    LossMeasured,
    MeasureLoss,
    Policy,
    Proceed,
    Report,
    Supervisor,
    Sync,
    Ticket,
    TraceWriter,
    Wake,
)
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError
from polyrhythm.sim.clock import Calendar, Reminder
from polyrhythm.sim.cluster.faults import Leave
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.sim.job import SimJob, deadlock, transport_plan
from polyrhythm.sim.steps import StepRunner
from polyrhythm.sim.transport import Transport
from polyrhythm.sim.trial import TrialStart, follow_epoch, follow_switch
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
        self.job, self.meter = job, meter
        self.numerics, self.workload = job.numerics, job.workload
        record, remark = (None, None) if writer is None else (writer.write, writer.remark)
        self.driver = Driver(job.policy, job.cluster, self, record=record, switched=self._switch, remarked=remark)
        self.ledger, self.tell = self.driver.ledger, self.driver.tell
        self.calendar = Calendar(job.limit_s)
        self.worker_states: dict[int, WorkerState] = {}
        self.departure: Leave | None = None
        self.shared_out: Proceed | None = None
        self.at_end: dict[int, Sequence[SampleRange]] = {}
        self.leave_steps = {(leave.worker, leave.step): leave for leave in job.plan.leaves if leave.step is not None}
        injected, compression = job.numerics.injected_bytes, job.numerics.compression
        workers = len(job.bandwidths)
        self.transport = Transport(self.calendar, job.network, meter, self._has_average, workers, compression)
        self.transport.has_part = self._has_stopped
        effects = self._arrive, self._go_on, job.finishes
        self.steps = StepRunner(self.calendar, self.transport, meter, job.cluster.batch_size, injected, *effects)
        self.obey_traits()
        self.alarms, self.switching, self.mark = 0, False, math.inf
        self.at_mark: Callable[[], float] = lambda: math.inf
        self.stopped = self.apart = self.between_epochs = False
        self.trial: TrialStart | None = None

    @property
    def policy(self) -> Policy[Any]:
        """The policy that leads the run."""
        return self.driver.policy

    def obey_traits(self) -> None:
        leads = self.driver.in_force if isinstance(self.policy, Supervisor) else self.policy
        self.transport_plan = transport_plan(leads, self.job.network)
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
        self._appoint_faults()
        absent = (join.worker for join in self.job.plan.joins)
        self._join(tuple(sorted({*range(self.job.cluster.workers)}.difference(absent))))
        self.end_epoch_if_over()

    def go_on(self) -> None:
        """As `run`; after a stop it may be called again."""
        calendar, transport, meter, driver = self.calendar, self.transport, self.meter, self.driver
        while not self.stopped and (self.worker_states or self.workload.left):
            if transport.timers:
                transport.settle()
            if not calendar.advance():
                self._refuse_deadlock()
                return
            if driver.leaving:
                driver.let_go(calendar.now_s)
            if not self.worker_states:
                self.end_epoch_if_over()
            if meter.samples >= self.mark:
                self.mark = self.at_mark()

    # What the policy decides (see `Effects`).

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine, which may take time."""
        for worker in (*decision.workers, *(decision.adopters or ())):
            self._take(self.worker_states[worker], decision)
        self.numerics.sync(decision, tickets)
        self.meter.sync(decision)
        if self.transport_plan.ring or not tickets:
            self.transport.average(decision, self.worker_states)
        elif len(tickets) > 1:
            self.steps.hold(len(tickets) * self.job.network.combine_s)

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """Start a step, as soon as the worker has all that it needs."""
        if self.switching:  # what the policy before has decided is carried out
            self.switching = False
            self.obey_traits()
            follow_switch(self)
        worker_state, settings = self.worker_states[ticket.worker], decision.settings
        if settings is not None:
            worker_state.batch_size = settings.batch_size or self.job.cluster.batch_size
        size = worker_state.batch_size if decision.shares is None else self._share(worker_state.worker, decision)
        begun = worker_state.ahead.popleft() if worker_state.ahead else None
        sample_range = worker_state.sample_range = begun or self.workload.hand_out(size, worker_state.worker)
        if sample_range is None:
            worker_state.finished = True
            if worker_state.averaging is None:
                self.driver.finish(worker_state.worker)
            return False
        worker_state.finished = False
        worker_state.version = self.meter.updates
        worker_state.through_server = ticket.exchange == "gradients" and not self.transport_plan.ring
        if begun is None and self.leave_steps:
            self._appoint_leave(worker_state)
        self.numerics.start(ticket, sample_range, settings)
        if begun is None:
            self.steps.begin(worker_state)
        return True

    def _share(self, worker: int, decision: Proceed) -> int:
        if decision is not self.shared_out:
            self.shared_out = decision
            self.workload.share_out(decision.workers, decision.shares or ())
        share = decision.share(worker)
        assert share is not None, "asked for where there are shares"
        return share

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Abandon what these workers have in flight and pending."""
        self.numerics.void(tickets)
        for worker in workers:
            worker_state = self.worker_states[worker]
            worker_state.finished = False
            self._abandon(worker_state)
            self.meter.cancel(worker)

    def stop(self, workers: tuple[int, ...]) -> None:
        """Send the word; what a worker has for the average comes with its answer."""
        for worker in workers:
            self.transport.tell(self.worker_states[worker], self._told_to_stop)

    def wake(self, decision: Wake) -> None:
        self.calendar.at(decision.time_s, self._alarm, Reminder(decision))

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Apply what a worker that has finished has pending; that takes nobody's time."""
        self.numerics.sync(decision, tickets)
        self.meter.sync(decision)
        self.meter.samples += sum(
            sample_range.samples for sample_range in self.worker_states[decision.workers[0]].gradients
        )

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """A worker goes; unless it has finished, with what it has in flight, pending and only in its replica."""
        worker_state = self.worker_states[worker]
        if reason == "finished":
            self.at_end[worker] = worker_state.local
            self.apart |= bool(worker_state.local)
            self._vacate(worker_state)
            return
        self.numerics.void(tickets)
        self._abandon(worker_state)
        self._vacate(worker_state)
        self._lose(worker, worker_state.local, self.departure)

    def _lose(self, worker: int, local: Iterable[SampleRange], leave: Leave | None) -> None:
        self.workload.leave(worker)
        self.numerics.leave(worker)
        for sample_range in local:
            self.meter.samples -= sample_range.samples
            self.workload.give_back(sample_range)
        if leave is not None and leave.back_after_s is not None:
            self.calendar.at(self.calendar.now_s + leave.back_after_s, self._join_late, Reminder(worker))

    def _switch(self) -> None:
        """Another policy is in force: whoever starts next stands still for as long as a switch takes."""
        self.meter.switches += 1
        self.switching = isinstance(self.policy, Supervisor)
        self.steps.hold(self.job.switch_cost_s)

    def _alarm(self, timer: Reminder) -> None:
        self.alarms += 1
        if self.alarms > ALARMS:
            raise PolicyError(
                f"policy {self.policy.spec} has woken itself {ALARMS:,} times since the last report; "
                "release somebody, or ask for an alarm when there is something to wait for"
            )
        time_s, measures = timer.about.time_s, isinstance(timer.about, MeasureLoss)
        self.tell(LossMeasured(time_s, self.numerics.probe()) if measures else Alarm(time_s))

    # Steps.

    def _go_on(self, worker_state: WorkerState) -> None:
        """The next step of a worker that does not wait for an answer, if anything is left for it."""
        sample_range = self.workload.hand_out(worker_state.batch_size, worker_state.worker)
        if sample_range is not None:
            worker_state.ahead.append(sample_range)
            self._appoint_leave(worker_state)
            self.steps.begin(worker_state)

    def _told_to_stop(self, worker_state: WorkerState) -> None:
        self.steps.interrupt(worker_state)
        if worker_state.free_s > self.calendar.now_s:
            self.calendar.at(worker_state.free_s, self.transport.push_part, worker_state)
        else:
            self.transport.push_part(worker_state)

    def _has_stopped(self, worker_state: WorkerState) -> None:
        """No report of it may come after the word that it has stopped."""
        if worker_state.sent:
            self.calendar.at(worker_state.sent[-1].arrives_s, self._has_stopped, worker_state)
        else:
            self.driver.stopped(worker_state.worker, self.calendar.now_s)

    def _has_average(self, worker_state: WorkerState) -> None:
        """The result of a `Sync` has come: the worker may go on, or go."""
        if worker_state.finished and worker_state.averaging is None:
            self.driver.finish(worker_state.worker)
        else:
            self.steps.take_up(worker_state)

    def _arrive(self, worker_state: WorkerState, compute_s: float, transfer_s: float) -> None:
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
        time_s, worker = self.calendar.now_s, worker_state.worker
        report = Report(worker, clock, time_s, samples, compute_s, transfer_s, staleness, loss, grad_sq_norm)
        self.meter.report(report, ticket.exchange)
        self.tell(report)

    # Combining and dropping.

    def _take(self, worker_state: WorkerState, decision: Sync) -> None:
        """What a worker has pending is combined, or given up for the result."""
        if decision.what != "gradients":
            worker_state.local.clear()
        elif worker_state.gradients:
            sample_range = worker_state.gradients.popleft()
            self.meter.samples += sample_range.stop - sample_range.start
        else:
            worker_state.local.pop()

    def _abandon(self, worker_state: WorkerState) -> None:
        """Whatever the worker has in flight and pending is for others to process."""
        for sample_range in worker_state.gradients:
            self.workload.give_back(sample_range)
        worker_state.gradients.clear()
        for sample_range in worker_state.ahead:
            self.workload.give_back(sample_range)
        worker_state.ahead.clear()
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
            self.numerics.leave(join.worker)  # it does not count until then
            self.calendar.at(join.time_s, self._join_late, Reminder(join.worker))

    def _appoint_leave(self, worker_state: WorkerState) -> None:
        if leave := self.leave_steps.pop((worker_state.worker, worker_state.started), None):
            self.calendar.at(self.calendar.now_s, self._depart, Reminder(leave))

    def _join(self, workers: tuple[int, ...]) -> None:
        job, now_s = self.job, self.calendar.now_s
        self.workload.join(workers)
        for worker in workers:
            slow = job.plan.slow.get(worker, ())
            self.worker_states[worker] = WorkerState(
                worker, job.durations[worker], job.bandwidths[worker], slow, job.cluster.batch_size
            )
        self.meter.join(workers, now_s)
        self.driver.join(workers, now_s)

    def _join_late(self, timer: Reminder) -> None:
        if self.between_epochs:
            self.at_end.setdefault(timer.about, ())
        elif timer.about not in self.worker_states and timer.about not in self.at_end:
            self._join((timer.about,))

    def end_epoch_if_over(self) -> None:
        """If all stand at the end of an epoch, their replicas become equal, and the next epoch begins."""
        workload, busy = self.workload, self.worker_states or self.between_epochs or not self.at_end
        if busy or not isinstance(workload, MeetingWorkload) or not workload.left:
            return
        begin_s, workers = self.calendar.now_s + self.job.epoch_end_s, tuple(sorted(self.at_end))
        if self.apart:
            self.numerics.sync(Sync(workers, "parameters"), [])
            begin_s += self.transport.meet(workers, [self.job.bandwidths[worker] for worker in workers])
            self.apart = False
        self.at_end, self.between_epochs = dict.fromkeys(workers, ()), True
        workload.open_next()
        follow_epoch(self)
        self.calendar.at(begin_s, self.begin_epoch, Reminder(None))

    def begin_epoch(self, _: Reminder) -> None:
        self.between_epochs, workers, self.at_end = False, tuple(sorted(self.at_end)), {}
        if workers:
            self._join(workers)

    def _depart(self, timer: Reminder) -> None:
        self.departure = leave = timer.about
        if leave.worker in self.worker_states:
            self.driver.leave(leave.worker, self.calendar.now_s, leave.reason)
        elif (lost := self.at_end.pop(leave.worker, None)) is not None:  # nobody is told: it is not live
            self.ledger.lose(len(lost))
            self._lose(leave.worker, lost, leave)
            if leave.worker in self.meter.live:  # it has waited until now, and has not just come back
                self.meter.leave(leave.worker, self.calendar.now_s)
        self.end_epoch_if_over()
        self._call_back()

    def _call_back(self) -> None:
        """When the last worker dies, those that had finished come back for the mini-batches that it left."""
        if not self.worker_states and self.workload.left and not self.between_epochs:
            self.begin_epoch(Reminder(None))

    def _vacate(self, worker_state: WorkerState) -> None:
        self.steps.lose_reports(worker_state)
        self.transport.leave_average(worker_state)
        self.steps.book(worker_state)
        if not (worker_state.finished and isinstance(self.workload, MeetingWorkload)):  # else it waits for an epoch
            self.meter.leave(worker_state.worker, self.calendar.now_s)
        worker_state.serial += 1
        worker_state.finished = False
        del self.worker_states[worker_state.worker]

    def _refuse_deadlock(self) -> None:
        """Nothing is scheduled any more, or the time is up; the former is wrong if work is left or somebody waits."""
        goes_on = self.calendar.appointments or self.calendar.now_s >= self.job.limit_s
        if goes_on or not (self.workload.left or self.worker_states):
            return
        raise deadlock(self.policy, self.calendar.now_s, sorted(self.worker_states), self.workload.left)

    def close(self) -> None:
        """The end: drop what is in flight and what nobody combined."""
        for worker_state in self.worker_states.values():
            self.steps.lose_reports(worker_state)
            self.steps.book(worker_state)
        self.numerics.void(self.ledger.finish())
        self.meter.policy_figures = self.driver.figures
