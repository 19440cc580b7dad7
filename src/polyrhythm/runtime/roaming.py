"""A worker's side under an arbitrated policy on replicas: it steps by itself and asks the hub behind every step."""

from collections import deque
from typing import Any

from polyrhythm.core import Policy
from polyrhythm.runtime.averager import Stake
from polyrhythm.runtime.control import Accepted, Cancelled, Go, LocalStep, Merge, Merged, Phase, ToWorker
from polyrhythm.runtime.epoch import GroupError
from polyrhythm.runtime.pushing import Granted
from polyrhythm.runtime.station import Station


class Roaming(Granted):
    """Steps on its own replica; a `Merge` is an exchange in which all members of the phase take part.

    Where the policy cancels steps, the hub is asked before the optimizer has made its step, so that a step that was
    cancelled while the question was under way leaves no trace in the replica.
    """

    def __init__(self, station: Station, policy: Policy[Any]) -> None:
        super().__init__(station)
        self._asks_first = policy.traits.cancels
        self._needs_norm = "grad_sq_norm" in policy.traits.needs
        self._steps = 0
        self._merges: deque[tuple[int, int]] = deque()
        self._asked_s: float | None = None
        self._query_s = 0.0
        self._exchange_s = 0.0
        self._transfer_s = 0.0
        station.exchange.averager.start()

    def before_step(self, samples: int) -> None:
        """Where steps can be cancelled: ask, and wait for the answer."""
        if self._asks_first and not self._accepted(samples):
            self._station.void = True
            self._station.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        """Ask what to do next, and do it."""
        if not self._station.void:
            if not self._asks_first:
                self._report(samples)
            self._steps += 1
            self._merge_due()
        self._station.wait()

    def follow(self, message: ToWorker) -> None:
        """A step may start, or all replicas meet."""
        if isinstance(message, Merge):
            self._exchange(message)
        else:
            super().follow(message)

    def end_epoch(self, version: int) -> None:
        """The replicas have met and are equal."""
        self._station.version = version

    # -- details ---------------------------------------------------------------------------------------------------

    def _report(self, samples: int) -> int:
        """Say that the step is complete; its number."""
        station, go = self._station, self._go
        assert go is not None, "a step was granted"
        self._go = None
        self._asked_s = station.clock()
        norm = station.replica.grad_sq_norm() if self._needs_norm else None
        station.link.send(LocalStep(go.number, samples, station.computed_s, self._transfer_s, grad_sq_norm=norm))
        return go.number

    def _accepted(self, samples: int) -> bool:
        """Report, and wait until it is clear whether the report came before a cancellation."""
        station = self._station
        number = self._report(samples)
        while True:
            match message := station.link.receive():
                case Accepted(number=found) if found == number:
                    self._query_s = station.clock() - (self._asked_s or 0.0)
                    self._asked_s = None
                    return True
                case Cancelled(number=found) if found == number:
                    return False
                case _:
                    station.pending.append(message)
                    if isinstance(message, Phase):
                        return True

    def _start_step(self, go: Go) -> None:
        """Note what the transfers before this step have taken; with an exchange, the query as it took before."""
        if self._asked_s is not None:
            self._query_s = self._station.clock() - self._asked_s
            self._asked_s = None
        self._transfer_s, self._exchange_s = self._query_s + self._exchange_s, 0.0
        self._station.tally.transferred_s += self._transfer_s

    def _exchange(self, merge: Merge) -> None:
        station = self._station
        start = station.clock()
        self._merges.append((merge.number, self._steps + merge.sync.delay))
        try:
            station.exchange.combine(Stake.of(merge.sync, station.rank), self._steps)
        except GroupError as error:
            station.declare_poisoned(1, str(error))
            return
        self._merge_due()
        self._exchange_s += station.clock() - start
        self._asked_s = None

    def _merge_due(self) -> None:
        """Take over the exchanges that are due, and tell the hub."""
        station = self._station
        try:
            station.exchange.averager.merge(self._steps)
        except GroupError as error:
            station.declare_poisoned(1, str(error))
            return
        while self._merges and self._merges[0][1] <= self._steps:
            station.link.send(Merged(self._merges.popleft()[0]))
