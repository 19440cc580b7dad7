"""The virtual cluster: runs one policy from the first `Joined` to the end of its workload.

A step under "gradients" is pull, compute, push, report; under "replicas" compute and report. What a `Sync` exchanges
takes its own time, and a worker that is released meanwhile starts when it has the result. The parameters belong to
the `Numerics`, which is told what happens in order of virtual time and takes none of it.
"""

import math
from collections.abc import Callable
from typing import Any

from polyrhythm.core import (
    Alarm,
    Driver,
    LeftReason,
    Policy,
    Proceed,
    Report,
    Sync,
    Ticket,
    TraceWriter,
)
from polyrhythm.errors import PolicyError
from polyrhythm.sim.calendar import Calendar, Timer
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.sim.faults import Leave
from polyrhythm.sim.job import Job as Job
from polyrhythm.sim.job import carriage, deadlock
from polyrhythm.sim.seat import Seat
from polyrhythm.sim.steps import Steps
from polyrhythm.sim.transport import Transport
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

    def __init__(self, job: Job, meter: Meter, writer: TraceWriter | None = None) -> None:
        self.job, self.meter = job, meter
        self.numerics, self.workload = job.numerics, job.workload
        record = None if writer is None else writer.write
        self.driver = Driver(job.policy, job.cluster, self, record=record, switched=self._switch)
        self.ledger, self.tell = self.driver.ledger, self.driver.tell
        self.calendar = Calendar(job.limit_s)
        self.seats: dict[int, Seat] = {}
        self.departure: Leave | None = None
        self.retired: list[int] = []
        self.leave_steps = {(leave.worker, leave.step): leave for leave in job.plan.leaves if leave.step is not None}
        injected, compression = job.numerics.injected_bytes, job.numerics.compression
        self.transport = Transport(self.calendar, job.network, meter, self._has_average, compression)
        self.steps = Steps(self.calendar, self.transport, meter, job.cluster.batch_size, injected, self._arrive)
        self.obey_traits()
        self.alarms = 0
        self.held_until_s = 0.0
        self.mark: float = math.inf
        self.at_mark: Callable[[], float] = lambda: math.inf
        self.stopped = self.apart = False

    @property
    def policy(self) -> Policy[Any]:
        """The rule that leads the run."""
        return self.driver.policy

    def obey_traits(self) -> None:
        """Let messages go as the policy's traits say."""
        self.carriage = carriage(self.policy, self.job.network)
        self.transport.ring, self.transport.arbitrated = self.carriage.ring, self.carriage.arbitrated
        self.steps.reports, self.steps.waits = self.carriage.reports, self.carriage.waits

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
        self.end_epoch_if_over()

    def go_on(self) -> None:
        """As `run`; after a stop it may be called again."""
        calendar, transport, meter, driver = self.calendar, self.transport, self.meter, self.driver
        while not self.stopped and (self.seats or self.workload.left):
            if transport.timers:
                transport.settle()
            if not calendar.advance():
                self._refuse_deadlock()
                return
            if driver.leaving:
                driver.let_go(calendar.now_s)
            if not self.seats:
                self.end_epoch_if_over()
            if meter.samples >= self.mark:
                self.mark = self.at_mark()

    # What the policy decides (see `Effects`).

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine, which may take time."""
        self.numerics.sync(decision, tickets)
        self.meter.sync(decision)
        for worker in (*decision.workers, *(decision.adopters or ())):
            self._take(self.seats[worker], decision)
        if self.carriage.ring or not tickets:
            self.transport.average(decision, self.seats)

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """Start a step, as soon as the worker has all that it needs."""
        seat, settings = self.seats[ticket.worker], decision.settings
        if settings is not None:
            seat.batch_size = settings.batch_size or self.job.cluster.batch_size
        lease = seat.lease = self.workload.lease(seat.batch_size, seat.worker)
        if lease is None:
            seat.finished = True
            if seat.averaging is None:
                self.driver.finish(seat.worker)
            return False
        seat.finished = False
        self.numerics.start(ticket, lease, settings)
        seat.version = self.meter.updates
        seat.through_server = ticket.exchange == "gradients" and not self.carriage.ring
        if self.leave_steps and (leave := self.leave_steps.pop((seat.worker, seat.started), None)):
            self.calendar.at(self.calendar.now_s, self._depart, Timer(leave))
        seat.started += 1
        if seat.may_start:
            seat.awaits_answer = self.carriage.arbitrated and self.carriage.waits
            self._start(seat)
        else:
            seat.released = True
        return True

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Abandon what these workers have in flight and pending."""
        self.numerics.void(tickets)
        for worker in workers:
            seat = self.seats[worker]
            seat.finished = False
            self._abandon(seat)
            self.meter.cancel(worker)

    def wake(self, time_s: float) -> None:
        """Send an alarm."""
        self.calendar.at(time_s, self._alarm, Timer(time_s))

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Apply what a worker that has finished has pending; that takes nobody's time."""
        self.numerics.sync(decision, tickets)
        self.meter.sync(decision)
        self.meter.samples += sum(lease.samples for lease in self.seats[decision.workers[0]].gradients)

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """A worker goes; unless it has finished, with what it has in flight, pending and only in its replica."""
        seat, leave = self.seats[worker], self.departure
        if reason == "finished":
            self.retired.append(worker)
            self.apart |= bool(seat.local)
            self._vacate(seat)
            return
        self.workload.leave(worker)
        self.numerics.void(tickets)
        self.numerics.leave(worker)
        self._abandon(seat)
        for lease in seat.local:
            self.meter.samples -= lease.samples
            self.workload.give_back(lease)
        self._vacate(seat)
        if leave is not None and leave.back_after_s is not None:
            self.calendar.at(self.calendar.now_s + leave.back_after_s, self._join_late, Timer(worker))

    def _switch(self) -> None:
        """Another rule is in force: whoever starts next stands still for as long as a switch takes."""
        self.meter.switches += 1
        self.held_until_s = self.calendar.now_s + self.job.switch_cost_s

    def _alarm(self, timer: Timer) -> None:
        self.alarms += 1
        if self.alarms > ALARMS:
            raise PolicyError(
                f"policy {self.policy.spec} has woken itself {ALARMS:,} times since the last report; "
                "release somebody, or ask for an alarm when there is something to wait for"
            )
        self.tell(Alarm(timer.about))

    # Steps.

    def _start(self, seat: Seat) -> None:
        """Start a step, at the earliest when a switch is over."""
        if self.held_until_s > self.calendar.now_s:
            self.calendar.at(self.held_until_s, self.steps.start, seat)
        else:
            self.steps.start(seat)

    def _has_average(self, seat: Seat) -> None:
        """The result of a `Sync` has come: the worker may go on, or go."""
        if seat.finished and seat.averaging is None:
            self.driver.finish(seat.worker)
        elif seat.released and seat.may_start:
            seat.released = False
            self._start(seat)

    def _arrive(self, seat: Seat) -> None:
        """A step is complete."""
        lease, seat.lease, self.alarms = seat.lease, None, 0
        assert lease is not None
        clock, ticket = self.ledger.report(seat.worker)
        loss, grad_sq_norm = self.numerics.report(ticket)
        samples, staleness = lease.stop - lease.start, 0
        if ticket.exchange == "gradients":
            staleness = self.meter.updates - seat.version
            seat.gradients.append(lease)
        else:
            seat.local.append(lease)
            self.meter.samples += samples
        report = Report(
            seat.worker,
            clock,
            self.calendar.now_s,
            samples,
            seat.compute_s,
            seat.transfer_s,
            staleness,
            loss,
            grad_sq_norm,
        )
        seat.compute_s = seat.transfer_s = 0.0
        self.meter.report(report, ticket.exchange)
        self.tell(report)

    # Combining and dropping.

    def _take(self, seat: Seat, decision: Sync) -> None:
        """What a worker has pending is combined, or given up for the result."""
        if decision.what != "gradients":
            seat.local.clear()
        elif seat.gradients:
            lease = seat.gradients.popleft()
            self.meter.samples += lease.stop - lease.start
        else:
            seat.local.pop()

    def _abandon(self, seat: Seat) -> None:
        """Whatever the worker has in flight and pending is for others to process."""
        for lease in seat.gradients:
            self.workload.give_back(lease)
        seat.gradients.clear()
        if seat.lease is None:
            return
        self.workload.give_back(seat.lease)
        seat.lease = None
        if seat.released:
            seat.released = False
        else:
            self.steps.interrupt(seat)

    # Coming and going.

    def _appoint_faults(self) -> None:
        for leave in self.job.plan.leaves:
            if leave.time_s is not None:
                self.calendar.at(leave.time_s, self._depart, Timer(leave))
        for join in self.job.plan.joins:
            self.calendar.at(join.time_s, self._join_late, Timer(join.worker))

    def _join(self, workers: tuple[int, ...]) -> None:
        job, now_s = self.job, self.calendar.now_s
        self.workload.join(workers)
        for worker in workers:
            slow = job.plan.slow.get(worker, ())
            self.seats[worker] = Seat(
                worker, job.durations[worker], job.bandwidths[worker], slow, job.cluster.batch_size
            )
        self.meter.join(workers, now_s)
        self.driver.join(workers, now_s)

    def _join_late(self, timer: Timer) -> None:
        if timer.about not in self.seats:
            self._join((timer.about,))

    def end_epoch_if_over(self) -> None:
        """If all stand at the end of an epoch, their replicas become equal, and the next epoch begins."""
        workload = self.workload
        if self.seats or not self.retired or not isinstance(workload, MeetingWorkload) or not workload.left:
            return
        workers, self.retired = tuple(sorted(set(self.retired))), []
        begin_s = self.calendar.now_s + self.job.epoch_end_s
        if self.apart:
            self.numerics.sync(Sync(workers, "parameters"), [])
            begin_s += self.transport.meeting_s([self.job.bandwidths[worker] for worker in workers])
            self.apart = False
        workload.open_next()
        self.calendar.at(begin_s, self._begin_epoch, Timer(workers))

    def _begin_epoch(self, timer: Timer) -> None:
        self._join(timer.about)

    def _depart(self, timer: Timer) -> None:
        self.departure = leave = timer.about
        if leave.worker not in self.seats:
            return
        self.driver.leave(leave.worker, self.calendar.now_s, leave.reason)
        self.end_epoch_if_over()
        self._call_back()

    def _call_back(self) -> None:
        """When the last worker dies, those that had finished come back for the mini-batches that it left."""
        if not self.seats and self.retired and self.workload.left:
            workers, self.retired = tuple(sorted(set(self.retired))), []
            self._join(workers)

    def _vacate(self, seat: Seat) -> None:
        self.transport.leave_average(seat)
        self.steps.book(seat)
        if not (seat.finished and isinstance(self.workload, MeetingWorkload)):  # else it waits for the next epoch
            self.meter.leave(seat.worker, self.calendar.now_s)
        seat.serial += 1
        seat.finished = False
        del self.seats[seat.worker]

    def _refuse_deadlock(self) -> None:
        """Nothing is scheduled any more, or the time is up; with work left the former is somebody's mistake."""
        if self.calendar.appointments or self.calendar.now_s >= self.job.limit_s or not self.workload.left:
            return
        raise deadlock(self.policy, self.calendar.now_s, sorted(self.seats), self.workload.left)

    def close(self) -> None:
        """The end: drop what is in flight and what nobody combined."""
        for seat in self.seats.values():
            self.steps.book(seat)
        self.numerics.void(self.ledger.finish())
        self.meter.policy_figures = self.driver.figures
