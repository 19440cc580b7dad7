"""Messages in virtual time: one worker's pulls and pushes, and the exchange that a `Sync` of replicas means."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from polyrhythm.sim.calendar import Calendar, Handler
from polyrhythm.sim.links import Network, SharedLink, ring_s
from polyrhythm.sim.seat import Average, Seat
from polyrhythm.telemetry import Meter


class Addressee(NamedTuple):
    """Who is called when a message has left the link, unless its step was abandoned."""

    seat: Seat
    serial: int
    then: Handler


@dataclass(slots=True, eq=False)
class LinkTimer:
    """The end of the next message on a link; void once who flows there has changed."""

    link: SharedLink[Addressee]
    serial: int = 0


class Transport:
    """Moves messages and charges their time and bytes.

    Args:
        calendar, network, meter: of the run.
        ring: whether averages go round a ring instead of through the server.
        has_average: called for each worker of an average when it has the result.
    """

    def __init__(
        self, calendar: Calendar, network: Network, meter: Meter, ring: bool, has_average: Callable[[Seat], None]
    ) -> None:
        self.calendar, self.network, self.meter = calendar, network, meter
        self.ring, self.has_average = ring, has_average
        self.ingress: SharedLink[Addressee] | None
        self.egress: SharedLink[Addressee] | None
        self.ingress, self.egress = network.links() or (None, None)
        self.timers = [LinkTimer(link) for link in dict.fromkeys((self.ingress, self.egress)) if link is not None]

    def pull(self, seat: Seat, then: Handler) -> None:
        """The parameters travel to a worker."""
        self._send(seat, self.egress, then)

    def push(self, seat: Seat, then: Handler) -> None:
        """A gradient or replica travels to the servers."""
        self._send(seat, self.ingress, then)

    def pulled(self, seat: Seat) -> None:
        """Book the end of a pull."""
        seat.end_transfer(self.calendar.now_s)
        self.meter.bytes_pulled += self.network.message_bytes

    def pushed(self, seat: Seat) -> None:
        """Book the end of a push."""
        seat.end_transfer(self.calendar.now_s)
        self.meter.bytes_pushed += self.network.message_bytes

    def signal(self, seat: Seat, then: Handler) -> None:
        """A message without a body."""
        seat.begin("transfer", self.calendar.now_s)
        self._arrives(seat, then)

    def settle(self) -> None:
        """Look anew for the next end of a message where who flows has changed."""
        for timer in self.timers:
            if timer.serial != timer.link.serial:
                timer.serial = timer.link.serial
                next_s = timer.link.next_s()
                if next_s < math.inf:
                    self.calendar.at(next_s, self._messages_end, timer)

    def interrupt(self, seat: Seat) -> None:
        """The worker's message is abandoned, and leaves its link to the others."""
        if seat.flow is not None:
            seat.flow.link.remove(self.calendar.now_s, seat.flow)
            seat.flow = None

    def average(self, seats: list[Seat]) -> None:
        """Charge these workers for exchanging replicas; who still awaits an older average leaves that one."""
        for seat in seats:
            self.leave_average(seat)
        average = Average(seats, {seat.worker for seat in seats})
        for seat in seats:
            seat.averaging = average
        if self.ring:
            self._go_round(average)
            return
        for seat in seats:
            self.push(seat, self._part_pushed)

    def leave_average(self, seat: Seat) -> None:
        """The worker does not await its average any more, and nobody awaits its part."""
        average = seat.averaging
        if average is None:
            return
        seat.averaging = None
        seat.serial += 1
        self.interrupt(seat)
        if seat.phase == "transfer":
            seat.end_transfer(self.calendar.now_s)
        if seat.worker in average.missing:
            self._part_settled(seat, average)

    def _go_round(self, average: Average) -> None:
        """A ring: nobody has the result before everybody has."""
        seats, size = average.seats, self.network.message_bytes
        # Half of the traffic reduces, as pushes do, and half gathers, as pulls do.
        self.meter.bytes_pushed += (len(seats) - 1) * size
        self.meter.bytes_pulled += (len(seats) - 1) * size
        average.missing.clear()
        for seat in seats:
            seat.begin("transfer", self.calendar.now_s)
        latency_s = max(self._latency_s(seat) for seat in seats)
        duration_s = ring_s(len(seats), size, min(seat.bandwidth for seat in seats), latency_s)
        if duration_s > 0:
            self.calendar.at(self.calendar.now_s + duration_s, self._went_round, average)
        else:
            self._went_round(average)

    def _went_round(self, average: Average) -> None:
        for seat in average.seats:
            if seat.averaging is average:
                seat.end_transfer(self.calendar.now_s)
                self._complete(seat)

    def _part_pushed(self, seat: Seat) -> None:
        self.pushed(seat)
        assert seat.averaging is not None
        self._part_settled(seat, seat.averaging)

    def _part_settled(self, seat: Seat, average: Average) -> None:
        """One part less to wait for; after the last one everybody pulls."""
        average.missing.remove(seat.worker)
        if average.missing:
            return
        for each in average.seats:
            if each.averaging is average:
                self.pull(each, self._part_pulled)

    def _part_pulled(self, seat: Seat) -> None:
        self.pulled(seat)
        self._complete(seat)

    def _complete(self, seat: Seat) -> None:
        seat.averaging = None
        self.has_average(seat)

    def _send(self, seat: Seat, link: SharedLink[Addressee] | None, then: Handler) -> None:
        """One message between a worker and the servers; ``then(seat)`` when it has arrived."""
        now_s, size = self.calendar.now_s, self.network.message_bytes
        seat.begin("transfer", now_s)
        if link is not None:
            seat.flow = link.add(now_s, size, seat.bandwidth, Addressee(seat, seat.serial, then))
        else:
            self._arrives(seat, then, size / seat.bandwidth)

    def _messages_end(self, timer: LinkTimer) -> None:
        for seat, serial, then in timer.link.pop(self.calendar.now_s):
            if seat.serial == serial:
                seat.flow = None
                self._arrives(seat, then)

    def _arrives(self, seat: Seat, then: Handler, sending_s: float = 0.0) -> None:
        """Call `then` when a message has arrived, at once if it takes no time."""
        delay_s = sending_s + self._latency_s(seat)
        if delay_s > 0:
            self.calendar.at(self.calendar.now_s + delay_s, then, seat)
        else:
            then(seat)

    def _latency_s(self, seat: Seat) -> float:
        if not seat.slow:
            return self.network.latency_s
        return self.network.latency_s + sum(slow.extra_latency_s for slow in seat.slow_now(self.calendar.now_s))
