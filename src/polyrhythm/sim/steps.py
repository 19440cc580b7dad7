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
        reports: whether a step that pushes nothing ends in a message.
        arrived: called when a step is complete.
    """

    def __init__(
        self,
        calendar: Calendar,
        transport: Transport,
        meter: Meter,
        batch_size: int,
        reports: bool,
        arrived: Callable[[Seat], None],
    ) -> None:
        self.calendar, self.transport, self.meter = calendar, transport, meter
        self.batch_size, self.reports, self.arrived = batch_size, reports, arrived

    def start(self, seat: Seat) -> None:
        """The worker has been released and has all that it waited for."""
        if seat.through_server:
            self.transport.pull(seat, self._pulled)
        else:
            self._compute(seat)

    def interrupt(self, seat: Seat) -> None:
        """Abandon the step in flight."""
        seat.serial += 1
        self.transport.interrupt(seat)
        self.book(seat)

    def book(self, seat: Seat) -> None:
        """Count the time since the last report, which no report will tell."""
        elapsed_s = self.calendar.now_s - seat.since_s
        if seat.phase == "compute":
            seat.compute_s = elapsed_s
        elif seat.phase == "transfer":
            seat.transfer_s += elapsed_s
        self.meter.busy(seat.worker, seat.compute_s, seat.transfer_s)
        seat.phase, seat.compute_s, seat.transfer_s = "wait", 0.0, 0.0

    def _pulled(self, seat: Seat) -> None:
        self.transport.pulled(seat)
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
        seat.phase, seat.since_s, seat.compute_s = "compute", now_s, duration_s
        self.calendar.at(now_s + duration_s, self._computed, seat)

    def _computed(self, seat: Seat) -> None:
        seat.phase = "wait"
        if seat.through_server:
            self.transport.push(seat, self._pushed)
        elif self.reports:
            self.transport.signal(seat, self._signalled)
        else:
            self.arrived(seat)

    def _pushed(self, seat: Seat) -> None:
        self.transport.pushed(seat)
        self.arrived(seat)

    def _signalled(self, seat: Seat) -> None:
        seat.end_transfer(self.calendar.now_s)
        self.arrived(seat)
