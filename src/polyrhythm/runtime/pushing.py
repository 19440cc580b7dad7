"""A worker's side under an arbitrated policy on gradients: it pushes them, and the servers make the steps."""

from polyrhythm.runtime.control import Go, Pushed
from polyrhythm.runtime.granted import Granted
from polyrhythm.runtime.station import Station


class Pushing(Granted):
    """Every step starts from the servers' parameters and ends in a push.

    Args:
        station: the worker's.
        swaps: whether the parameters of the next step come while the gradients of this one go. They are without them,
            and the hub is told which version they are.
    """

    def __init__(self, station: Station, swaps: bool = False) -> None:
        super().__init__(station)
        self._swaps = swaps
        self._swapped: int | None = None
        self._pulled_s = 0.0

    def before_step(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile, and keep the script's optimizer from them."""
        self._push(samples)
        self._station.hide_gradients()

    def after_step(self, samples: int) -> None:
        """Wait for the next `Go`."""
        self._station.wait()

    def end_epoch(self, version: int) -> None:
        """Take over the final parameters."""
        station = self._station
        self._swapped = None
        if version > station.version:
            station.link.pull(version)
            station.version = version

    def _push(self, samples: int) -> None:
        station = self._station
        while self._go is not None and (message := station.link.poll()) is not None:
            station.follow(message)
        go, self._go = self._go, None
        if go is None:  # cancelled; the Go behind it waits until the step is over
            station.void = True
            return
        start = station.clock()
        self._send(go.number)
        transfer_s = self._pulled_s + station.clock() - start
        settings, read = station.replica.settings(), station.version if self._swaps else None
        station.link.send(
            Pushed(go.number, samples, station.computed_s, transfer_s, station.loss, settings=settings, read=read)
        )

    def _send(self, number: int) -> None:
        link = self._station.link
        if self._swaps:
            self._swapped = link.swap(number)
        else:
            link.push(number)

    def _start_step(self, go: Go) -> None:
        """Read the parameters that the step is to start from."""
        station = self._station
        start = station.clock()
        if self._swapped is not None:
            station.link.take_swapped()
            station.version, self._swapped = self._swapped, None
        elif go.version > station.version:
            station.link.pull(go.version)
            station.version = go.version
        self._pulled_s = station.clock() - start
        station.tally.transferred_s += self._pulled_s
