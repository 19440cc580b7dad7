"""One step in virtual time: pull, compute and push through the server, or compute alone."""

from collections.abc import Callable

from polyrhythm.sim.clock import Calendar
from polyrhythm.sim.transport import Transport
from polyrhythm.sim.worker import SentReport, WorkerState
from polyrhythm.telemetry import Meter


class StepRunner:
    """Takes workers through their steps.

    Args:
        calendar, transport, meter: of the run.
        batch_size: samples of the mini-batch whose durations the worker states have.
        injected_bytes: what a worker sends to the others before it computes, on its own NIC; 0 is nothing.
        arrived: called when a step is complete and its report has come, with its seconds of computing and transfers.
        go_on: called when a worker that does not wait for an answer is ready for its next step.
        finishes: whether a step that is cancelled is computed to its end.

    Attributes:
        reports: whether a step that pushes nothing ends in a message.
        waits: whether its worker waits for the answer to that.
        held_until_s: before this time no step starts.
    """

    def __init__(
        self,
        calendar: Calendar,
        transport: Transport,
        meter: Meter,
        batch_size: int,
        injected_bytes: float,
        arrived: Callable[[WorkerState, float, float], None],
        go_on: Callable[[WorkerState], None],
        finishes: bool = False,
    ) -> None:
        self.calendar, self.transport, self.meter = calendar, transport, meter
        self.batch_size, self.injected_bytes = batch_size, injected_bytes
        self.arrived, self.go_on, self.finishes = arrived, go_on, finishes
        transport.has_parameters, transport.has_gradient = self._inject, self._complete
        self.reports, self.waits = False, True
        self.held_until_s = 0.0

    def hold(self, seconds: float) -> None:
        """Nobody starts a step for so long."""
        self.held_until_s = max(self.held_until_s, self.calendar.now_s + seconds)

    def begin(self, worker_state: WorkerState) -> None:
        """The worker is released: it starts its next step, or waits for the results that the step needs."""
        worker_state.started += 1
        worker_state.part_sent = False
        if self._may_start(worker_state):
            worker_state.awaits_answer = self.transport.coordinated and self.waits
            self._start(worker_state)
        else:
            worker_state.released = True

    def take_up(self, worker_state: WorkerState) -> None:
        """A result has come, for which a worker that is released may have waited."""
        if worker_state.released and self._may_start(worker_state):
            worker_state.released = False
            self._start(worker_state)

    def _may_start(self, worker_state: WorkerState) -> bool:
        """Whether it has all results that its next step needs; `started` counts that step."""
        if worker_state.averaging is not None or not worker_state.transfers:
            return worker_state.averaging is None
        return all(worker_state.started <= transfer.due for transfer in worker_state.transfers)

    def _start(self, worker_state: WorkerState) -> None:
        begin_s = max(self.held_until_s, worker_state.free_s)
        if begin_s > self.calendar.now_s:
            self.calendar.at(begin_s, self.start, worker_state)
        else:
            self.start(worker_state)

    def start(self, worker_state: WorkerState) -> None:
        if worker_state.through_server:
            self.transport.pull(worker_state)
        elif worker_state.awaits_answer:
            worker_state.awaits_answer = False
            self.transport.signal(worker_state, self._told)
        else:
            self._inject(worker_state)

    def _told(self, worker_state: WorkerState) -> None:
        self.transport.end(worker_state)
        self._inject(worker_state)

    def interrupt(self, worker_state: WorkerState) -> None:
        if self.finishes and worker_state.phase == "compute":
            worker_state.free_s = worker_state.since_s + worker_state.compute_s
        worker_state.serial += 1
        self.transport.interrupt(worker_state)
        self.book(worker_state)

    def lose_reports(self, worker_state: WorkerState) -> None:
        """What travels comes to nobody; the time that it tells of was spent."""
        for report in worker_state.sent:
            report.serial += 1
            self.meter.busy(worker_state.worker, report.compute_s, report.transfer_s)
        worker_state.sent.clear()

    def book(self, worker_state: WorkerState) -> None:
        """Count the time since the last report, which no report will tell."""
        elapsed_s = self.calendar.now_s - worker_state.since_s
        if worker_state.phase == "compute":
            worker_state.compute_s = elapsed_s
        elif worker_state.phase == "transfer":
            worker_state.transfer_s += elapsed_s
        self.meter.busy(worker_state.worker, worker_state.compute_s, worker_state.transfer_s)
        worker_state.phase, worker_state.compute_s, worker_state.transfer_s = "wait", 0.0, 0.0

    def _inject(self, worker_state: WorkerState) -> None:
        """Samples go from worker to worker; every worker waits for the senders' links."""
        if self.injected_bytes:
            self.transport.between(worker_state, self.injected_bytes, self._injected)
        else:
            self._compute(worker_state)

    def _injected(self, worker_state: WorkerState) -> None:
        self.transport.end(worker_state)
        self._compute(worker_state)

    def _compute(self, worker_state: WorkerState) -> None:
        now_s = self.calendar.now_s
        duration_s = next(worker_state.durations)
        sample_range = worker_state.ahead[-1] if worker_state.ahead else worker_state.sample_range
        assert sample_range is not None, "a step has been begun"
        samples = sample_range.stop - sample_range.start
        if samples != self.batch_size:
            duration_s *= samples / self.batch_size
        if worker_state.slow:
            for slow in worker_state.slow_now(now_s):
                duration_s = duration_s * slow.slowdown + slow.extra_compute_s
        worker_state.phase, worker_state.since_s, worker_state.compute_s = "compute", now_s, duration_s
        self.calendar.at(now_s + duration_s, self._computed, worker_state)

    def _computed(self, worker_state: WorkerState) -> None:
        worker_state.phase = "wait"
        if worker_state.through_server:
            self.transport.push(worker_state)
        elif self.reports and self.waits:
            self.transport.signal(worker_state, self._signalled)
        elif self.reports:
            self._report_and_go_on(worker_state)
        else:
            self._complete(worker_state)

    def _signalled(self, worker_state: WorkerState) -> None:
        self.transport.end(worker_state)
        self._complete(worker_state)

    def _complete(self, worker_state: WorkerState) -> None:
        compute_s, transfer_s = worker_state.compute_s, worker_state.transfer_s
        worker_state.compute_s = worker_state.transfer_s = 0.0
        self.arrived(worker_state, compute_s, transfer_s)

    def _report_and_go_on(self, worker_state: WorkerState) -> None:
        """The report travels, after those before it, while the worker computes on."""
        report = SentReport(worker_state, worker_state.compute_s, worker_state.transfer_s)
        worker_state.compute_s = worker_state.transfer_s = 0.0
        before_s = worker_state.sent[-1].arrives_s if worker_state.sent else 0.0
        report.arrives_s = max(before_s, self.calendar.now_s + self.transport.latency_s(worker_state))
        worker_state.sent.append(report)
        self.calendar.at(report.arrives_s, self._came, report)
        self.go_on(worker_state)

    def _came(self, report: SentReport) -> None:
        report.worker_state.sent.popleft()
        self.arrived(report.worker_state, report.compute_s, report.transfer_s)
