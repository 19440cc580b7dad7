"""Messages in virtual time: one worker's pulls and pushes, and the exchange that a `Sync` of replicas means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyrhythm.core import Sync
from polyrhythm.sim.clock import Calendar, EventHandler
from polyrhythm.sim.cluster.links import Network, SharedLink, all_reduce_s
from polyrhythm.sim.worker import Average, Carrier, Transfer, WorkerState
from polyrhythm.telemetry import Meter
from polyrhythm.training.compression import NOTHING, Compression


class Addressee(NamedTuple):
    """Who is called when a message has left the link, unless its step was abandoned."""

    worker_state: Carrier
    serial: int
    then: EventHandler


@dataclass(slots=True, eq=False)
class LinkTimer:
    """The end of the next message on a link; void once who flows there has changed."""

    link: SharedLink[Addressee]
    serial: int = 0


class Transport:
    """Moves messages and charges their time and bytes.

    Args:
        calendar, network, meter: of the run.
        has_average: called for each worker of an average when it has the result.
        workers: planned.
        compression: what contributions and, as it says, parameters that are pulled travel as.

    Attributes:
        ring: whether what a `Sync` exchanges goes round a ring instead of through the server, also gradients.
        coordinated: whether somebody has to tell the workers when they average.
        has_parameters, has_gradient: called when a pull has come to its worker, and a push to the servers; see `Steps`.
        has_part: called when the part of a worker that stops has come to the servers.
        served_s: when the server is done with all pushes that have come.
    """

    def __init__(
        self,
        calendar: Calendar,
        network: Network,
        meter: Meter,
        has_average: Callable[[WorkerState], None],
        workers: int,
        compression: Compression = NOTHING,
    ) -> None:
        self.calendar, self.network, self.meter, self.workers = calendar, network, meter, workers
        self.ring = self.coordinated = False
        self.has_average, self.compression = has_average, compression
        self.has_parameters: Callable[[WorkerState], None]
        self.has_gradient: Callable[[WorkerState], None]
        self.has_part: Callable[[WorkerState], None]
        self.served_s = 0.0
        self.push_bytes = network.message_bytes * compression.ratio
        self.pull_bytes = network.message_bytes * compression.pull_ratio
        self.ingress: SharedLink[Addressee] | None
        self.egress: SharedLink[Addressee] | None
        self.ingress, self.egress = network.links() or (None, None)
        self.timers = [LinkTimer(link) for link in dict.fromkeys((self.ingress, self.egress)) if link is not None]

    def pull(self, worker_state: WorkerState) -> None:
        self._send(worker_state, self.egress, self.pull_bytes, self._pulled)

    def push(self, worker_state: WorkerState) -> None:
        """A gradient travels to the servers; `has_gradient` when they have seen to it."""
        self._send(worker_state, self.ingress, self.push_bytes, self._serve if self.network.service_s else self._pushed)

    def _pulled(self, worker_state: WorkerState) -> None:
        self.end(worker_state)
        self.meter.bytes_pulled += self.pull_bytes
        self.has_parameters(worker_state)

    def _serve(self, worker_state: WorkerState) -> None:
        """A push has come: the server sees to it after those that came before."""
        self.served_s = max(self.served_s, self.calendar.now_s) + self.network.service_s
        self.calendar.at(self.served_s, self._pushed, worker_state)

    def _pushed(self, worker_state: WorkerState) -> None:
        self.end(worker_state)
        self.meter.bytes_pushed += self.push_bytes
        self.has_gradient(worker_state)

    def signal(self, worker_state: WorkerState, then: EventHandler) -> None:
        self.begin(worker_state)
        self._arrives(worker_state, then)

    def tell(self, worker_state: WorkerState, then: EventHandler) -> None:
        """Words to a worker that goes on meanwhile."""
        self.calendar.at(self.calendar.now_s + self.latency_s(worker_state), then, worker_state)

    def push_part(self, worker_state: WorkerState) -> None:
        """A worker that stops pushes its part of the next average; `has_part` when it has come."""
        worker_state.part_sent = True
        self._send(worker_state, self.ingress, self.push_bytes, self._part_came)

    def _part_came(self, worker_state: WorkerState) -> None:
        self.end(worker_state)
        self.meter.bytes_pushed += self.push_bytes
        self.has_part(worker_state)

    def between(self, worker_state: WorkerState, size: float, then: EventHandler) -> None:
        """So many bytes among the workers, past the servers."""
        self.begin(worker_state)
        self._arrives(worker_state, then, size / worker_state.bandwidth)

    def settle(self) -> None:
        for timer in self.timers:
            if timer.serial != timer.link.serial:
                timer.serial = timer.link.serial
                next_s = timer.link.next_s()
                if next_s < math.inf:
                    self.calendar.at(next_s, self._messages_end, timer)

    def interrupt(self, worker_state: Carrier) -> None:
        if worker_state.flow is not None:
            worker_state.flow.link.remove(self.calendar.now_s, worker_state.flow)
            worker_state.flow = None

    def average(self, sync: Sync, worker_states: dict[int, WorkerState]) -> None:
        """Charge workers for what a `Sync` exchanges; who still awaits an older result leaves that one."""
        adopters = set(sync.workers if sync.adopters is None else sync.adopters)
        members = [worker_states[worker] for worker in dict.fromkeys((*sync.workers, *sorted(adopters)))]
        carriers = [self._carrier(worker_state, sync.delay) for worker_state in members]
        share = 1 / sync.fragment[1] if sync.fragment else 1.0
        missing = {worker for worker in sync.workers if not worker_states[worker].part_sent}
        hidden_s = self.network.hidden_s if sync.what == "gradients" else 0.0
        average = Average(carriers, missing, adopters, share, hidden_s)
        for carrier in carriers:
            carrier.averaging = average
        for worker in sync.workers:
            worker_states[worker].part_sent = False
        if self.ring:
            self._go_round(average)
            return
        if not missing:
            self._hand_out(average)
            return
        if self.network.averaging == "ring" and len(missing) == len(sync.workers):
            self._call_together(average)
            return
        for carrier in carriers:
            if carrier.worker in average.missing:
                self._tell(carrier)

    def meet(self, workers: Sequence[int], bandwidths: Sequence[float]) -> float:
        """Charge what it takes to make the replicas of workers with such links equal while all stand; its seconds."""
        network, members = self.network, len(bandwidths)
        if network.averaging == "ring":
            self._charge_ring(workers)
            return self._ring_s(workers, bandwidths, network.latency_s)
        self.meter.bytes_pushed += members * self.push_bytes
        self.meter.bytes_pulled += members * self.pull_bytes
        rate = min(*bandwidths, network.server_bytes_per_s / members)
        return (self.push_bytes + self.pull_bytes) / rate + 2 * network.latency_s

    def leave_average(self, worker_state: WorkerState) -> None:
        """The worker awaits no result any more, and nobody awaits its part."""
        for transfer in worker_state.transfers:
            self._abandon(transfer)
        worker_state.transfers.clear()
        self._abandon(worker_state)

    def _carrier(self, worker_state: WorkerState, delay: int) -> Carrier:
        """What carries the worker's part: the worker, or a transfer that it sends off."""
        if delay:
            transfer = Transfer(worker_state, worker_state.started + delay)
            worker_state.transfers.append(transfer)
            return transfer
        self._abandon(worker_state)
        return worker_state

    def _abandon(self, carrier: Carrier) -> None:
        average = carrier.averaging
        if average is None:
            return
        carrier.averaging = None
        carrier.serial += 1
        self.interrupt(carrier)
        if carrier.phase == "transfer":
            self.end(carrier)
        if carrier.worker in average.missing:
            self._part_settled(carrier, average)

    def _tell(self, carrier: Carrier) -> None:
        """An arbiter has to tell that it is time; then the worker pushes its part."""
        if self.coordinated:
            self.begin(carrier)
            self._arrives(carrier, self._told)
        else:
            self._push_part(carrier)

    def _told(self, carrier: Carrier) -> None:
        self.end(carrier)
        self._push_part(carrier)

    def _push_part(self, carrier: Carrier) -> None:
        assert carrier.averaging is not None
        self._send(carrier, self.ingress, carrier.averaging.share * self.push_bytes, self._part_pushed)

    def _call_together(self, average: Average) -> None:
        """An arbiter tells those who are there that they go round a ring."""
        for carrier in average.carriers:
            self.begin(carrier)
        called_s = max(self.latency_s(carrier) for carrier in average.carriers)
        self.calendar.at(self.calendar.now_s + called_s, self._come_together, average)

    def _come_together(self, average: Average) -> None:
        average.carriers[:] = [carrier for carrier in average.carriers if carrier.averaging is average]
        if average.carriers:
            self._go_round(average)

    def _go_round(self, average: Average) -> None:
        """A ring: nobody has the result before everybody has."""
        carriers = average.carriers
        workers = [carrier.worker for carrier in carriers]
        self._charge_ring(workers, average.share)
        average.missing.clear()
        for carrier in carriers:
            if carrier.phase != "transfer":
                self.begin(carrier)
        latency_s = max(self.latency_s(carrier) for carrier in carriers)
        duration_s = self._ring_s(workers, [carrier.bandwidth for carrier in carriers], latency_s, average.share)
        duration_s -= average.hidden_s
        if duration_s > 0:
            self.calendar.at(self.calendar.now_s + duration_s, self._went_round, average)
        else:
            self._went_round(average)

    def _charge_ring(self, workers: Sequence[int], share: float = 1.0) -> None:
        """Half of the traffic reduces, as pushes do, and half gathers, as pulls do."""
        parties = self._parties(workers)
        size = share * self._ring_bytes(parties)
        self.meter.bytes_pushed += (parties - 1) * size
        self.meter.bytes_pulled += (parties - 1) * size

    def _ring_s(
        self, workers: Sequence[int], bandwidths: Sequence[float], latency_s: float, share: float = 1.0
    ) -> float:
        """How long such a share of the replicas of workers with such links goes round."""
        parties = self._parties(workers)
        return all_reduce_s(self.network, parties, share * self._ring_bytes(parties), min(bandwidths), latency_s)

    def _parties(self, workers: Sequence[int]) -> int:
        """What is compressed is not summed up on the hosts."""
        if self.compression.kind != "none":
            return len(workers)
        return self.network.parties(workers, self.workers)

    def _ring_bytes(self, parties: int) -> float:
        """Bytes whose all-reduce takes as long as handing round what is compressed, which is not summed on the way."""
        if self.compression.kind == "none":
            return self.network.message_bytes
        return self.push_bytes * parties / 2

    def _went_round(self, average: Average) -> None:
        for carrier in average.carriers:
            if carrier.averaging is average:
                self.end(carrier)
                self._complete(carrier)

    def _part_pushed(self, carrier: Carrier) -> None:
        average = carrier.averaging
        assert average is not None
        self.end(carrier)
        self.meter.bytes_pushed += average.share * self.push_bytes
        if carrier.worker not in average.adopters:
            self._complete(carrier)
        self._part_settled(carrier, average)

    def _part_settled(self, carrier: Carrier, average: Average) -> None:
        """One part less to wait for; after the last one everybody who adopts the result pulls."""
        average.missing.remove(carrier.worker)
        if not average.missing:
            self._hand_out(average)

    def _hand_out(self, average: Average) -> None:
        for each in average.carriers:
            if each.averaging is average:
                self._send(each, self.egress, average.share * self.network.message_bytes, self._part_pulled)

    def _part_pulled(self, carrier: Carrier) -> None:
        assert carrier.averaging is not None
        self.end(carrier)
        self.meter.bytes_pulled += carrier.averaging.share * self.network.message_bytes
        self._complete(carrier)

    def _complete(self, carrier: Carrier) -> None:
        carrier.averaging = None
        if isinstance(carrier, Transfer):
            carrier.worker_state.transfers.remove(carrier)
            self.has_average(carrier.worker_state)
        else:
            self.has_average(carrier)

    def _send(self, carrier: Carrier, link: SharedLink[Addressee] | None, size: float, then: EventHandler) -> None:
        self.begin(carrier)
        if link is not None:
            carrier.flow = link.add(
                self.calendar.now_s, size, carrier.bandwidth, Addressee(carrier, carrier.serial, then)
            )
        else:
            self._arrives(carrier, then, size / carrier.bandwidth)

    def _messages_end(self, timer: LinkTimer) -> None:
        for worker_state, serial, then in timer.link.pop(self.calendar.now_s):
            if worker_state.serial == serial:
                worker_state.flow = None
                self._arrives(worker_state, then)

    def _arrives(self, worker_state: Carrier, then: EventHandler, sending_s: float = 0.0) -> None:
        delay_s = sending_s + self.latency_s(worker_state)
        if delay_s > 0:
            self.calendar.at(self.calendar.now_s + delay_s, then, worker_state)
        else:
            then(worker_state)

    def begin(self, carrier: Carrier) -> None:
        carrier.phase, carrier.since_s = "transfer", self.calendar.now_s

    def end(self, carrier: Carrier) -> None:
        carrier.transfer_s += self.calendar.now_s - carrier.since_s
        carrier.phase = "wait"

    def latency_s(self, worker_state: Carrier) -> float:
        if not worker_state.slow:
            return self.network.latency_s
        return self.network.latency_s + sum(slow.extra_latency_s for slow in worker_state.slow_now(self.calendar.now_s))
