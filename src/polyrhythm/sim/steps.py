"""One step in virtual time: pull, compute and push through the server, or compute alone."""

from collections.abc import Callable

from polyrhythm.sim.calendar import Calendar
from polyrhythm.sim.seat import Seat
from polyrhythm.sim.transport import Transport
from polyrhythm.telemetry import Meter


class Steps:
    """Takes workers through their steps.

    Args:
        calendar, transport, meter: of the run.
        batch_size: samples of the mini-batch whose durations the seats state.
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
        arrived: Callable[[Seat], None],
    ) -> None:
        self.calendar, self.transport, self.meter = calendar, transport, meter
        self.batch_size, self.injected_bytes, self.arrived = batch_size, injected_bytes, arrived
        transport.has_parameters, transport.has_gradient = self._inject, arrived
        self.reports, self.waits = False, True

    def start(self, seat: Seat) -> None:
        """The worker has been released and has all that it waited for."""
        if seat.through_server:
            self.transport.pull(seat)
        elif seat.awaits_answer:
            seat.awaits_answer = False
            self.transport.signal(seat, self._told)
        else:
            self._inject(seat)

    def _told(self, seat: Seat) -> None:
        seat.end_transfer(self.calendar.now_s)
        self._inject(seat)

    def interrupt(self, seat: Seat) -> None:
        """Abandon the step in flight."""
        seat.serial += 1
        self.transport.interrupt(seat)
        self.book(seat)

    def book(self, seat: Seat) -> None:
        """Count the time since the last report, which no report will tell."""
        elapsed_s = self.calendar.now_s - seat.since_s
        if seat.phase == "compute":
            seat.compute_s = elapsed_s if seat.ahead_s is None else seat.compute_s + elapsed_s
        elif seat.phase == "transfer":
            seat.transfer_s += elapsed_s
        self.meter.busy(seat.worker, seat.compute_s, seat.transfer_s)
        seat.phase, seat.compute_s, seat.transfer_s, seat.ahead_s = "wait", 0.0, 0.0, None

    def _inject(self, seat: Seat) -> None:
        """Samples go from worker to worker; every worker waits for the senders' links."""
        if self.injected_bytes:
            self.transport.between(seat, self.injected_bytes, self._injected)
        else:
            self._compute(seat)

    def _injected(self, seat: Seat) -> None:
        seat.end_transfer(self.calendar.now_s)
        self._compute(seat)

    def _compute(self, seat: Seat) -> None:
        now_s = self.calendar.now_s
        assert seat.lease is not None
        duration_s = next(seat.durations)
        samples = seat.lease.stop - seat.lease.start
        if samples != self.batch_size:
            duration_s *= samples / self.batch_size
        if seat.slow:
            for slow in seat.slow_now(now_s):
                duration_s = duration_s * slow.slowdown + slow.extra_compute_s
        since_s = now_s if seat.ahead_s is None else seat.ahead_s
        seat.phase, seat.since_s, seat.compute_s, seat.ahead_s = "compute", since_s, duration_s, None
        self.calendar.at(max(now_s, since_s + duration_s), self._computed, seat)

    def _computed(self, seat: Seat) -> None:
        seat.phase = "wait"
        if seat.through_server:
            self.transport.push(seat)
        elif self.reports and self.waits:
            self.transport.signal(seat, self._signalled)
        elif self.reports:
            seat.phase, seat.since_s, seat.ahead_s = "compute", self.calendar.now_s, self.calendar.now_s
            self.transport.post(seat, self.arrived)
        else:
            self.arrived(seat)

    def _signalled(self, seat: Seat) -> None:
        seat.end_transfer(self.calendar.now_s)
        self.arrived(seat)
