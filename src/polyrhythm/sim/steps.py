"""One step in virtual time: pull, compute and push through the server, or compute alone."""

from collections.abc import Callable

from polyrhythm.sim.clock import Calendar
from polyrhythm.sim.transport import Transport
from polyrhythm.sim.worker import WorkerState
from polyrhythm.telemetry import Meter


class StepRunner:
    """Takes workers through their steps.

    Args:
        calendar, transport, meter: of the run.
        batch_size: samples of the mini-batch whose durations the worker states have.
        injected_bytes: what a worker sends to the others before it computes, on its own NIC; 0 is nothing.
        arrived: called when a step is complete.

    Attributes:
        reports: whether a step that pushes nothing ends in a message.
        waits: whether its worker waits for the answer to that.
    """

    def __init__(
        self,
        calendar: Calendar,
        transport: Transport,
        meter: Meter,
        batch_size: int,
        injected_bytes: float,
        arrived: Callable[[WorkerState], None],
    ) -> None:
        self.calendar, self.transport, self.meter = calendar, transport, meter
        self.batch_size, self.injected_bytes, self.arrived = batch_size, injected_bytes, arrived
        transport.has_parameters, transport.has_gradient = self._inject, arrived
        self.reports, self.waits = False, True

    def start(self, worker_state: WorkerState) -> None:
        if worker_state.through_server:
            self.transport.pull(worker_state)
        elif worker_state.awaits_answer:
            worker_state.awaits_answer = False
            self.transport.signal(worker_state, self._told)
        else:
            self._inject(worker_state)

    def _told(self, worker_state: WorkerState) -> None:
        worker_state.end_transfer(self.calendar.now_s)
        self._inject(worker_state)

    def interrupt(self, worker_state: WorkerState) -> None:
        worker_state.serial += 1
        self.transport.interrupt(worker_state)
        self.book(worker_state)

    def book(self, worker_state: WorkerState) -> None:
        """Count the time since the last report, which no report will tell."""
        elapsed_s = self.calendar.now_s - worker_state.since_s
        if worker_state.phase == "compute":
            worker_state.compute_s = elapsed_s if worker_state.ahead_s is None else worker_state.compute_s + elapsed_s
        elif worker_state.phase == "transfer":
            worker_state.transfer_s += elapsed_s
        self.meter.busy(worker_state.worker, worker_state.compute_s, worker_state.transfer_s)
        worker_state.phase, worker_state.compute_s, worker_state.transfer_s, worker_state.ahead_s = (
            "wait",
            0.0,
            0.0,
            None,
        )

    def _inject(self, worker_state: WorkerState) -> None:
        """Samples go from worker to worker; every worker waits for the senders' links."""
        if self.injected_bytes:
            self.transport.between(worker_state, self.injected_bytes, self._injected)
        else:
            self._compute(worker_state)

    def _injected(self, worker_state: WorkerState) -> None:
        worker_state.end_transfer(self.calendar.now_s)
        self._compute(worker_state)

    def _compute(self, worker_state: WorkerState) -> None:
        now_s = self.calendar.now_s
        assert worker_state.sample_range is not None
        duration_s = next(worker_state.durations)
        samples = worker_state.sample_range.stop - worker_state.sample_range.start
        if samples != self.batch_size:
            duration_s *= samples / self.batch_size
        if worker_state.slow:
            for slow in worker_state.slow_now(now_s):
                duration_s = duration_s * slow.slowdown + slow.extra_compute_s
        since_s = now_s if worker_state.ahead_s is None else worker_state.ahead_s
        worker_state.phase, worker_state.since_s, worker_state.compute_s, worker_state.ahead_s = (
            "compute",
            since_s,
            duration_s,
            None,
        )
        self.calendar.at(max(now_s, since_s + duration_s), self._computed, worker_state)

    def _computed(self, worker_state: WorkerState) -> None:
        worker_state.phase = "wait"
        if worker_state.through_server:
            self.transport.push(worker_state)
        elif self.reports and self.waits:
            self.transport.signal(worker_state, self._signalled)
        elif self.reports:
            worker_state.phase, worker_state.since_s, worker_state.ahead_s = (
                "compute",
                self.calendar.now_s,
                self.calendar.now_s,
            )
            self.transport.post(worker_state, self.arrived)
        else:
            self.arrived(worker_state)

    def _signalled(self, worker_state: WorkerState) -> None:
        worker_state.end_transfer(self.calendar.now_s)
        self.arrived(worker_state)
