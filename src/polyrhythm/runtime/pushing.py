"""A worker's side under an arbitrated policy on gradients: it pushes them, and the servers make the steps.

Also what it has in common with workers that step on replicas: the hub grants every step.
"""

from collections import deque
from typing import ClassVar

from polyrhythm.core import Settings
from polyrhythm.core.workload import Lease
from polyrhythm.runtime.control import Cancelled, Go, Over, Pushed, Skipped, ToWorker
from polyrhythm.runtime.station import Station


class Granted:
    """Every step needs a `Go`, which also grants what the worker may draw."""

    together: ClassVar[bool] = False
    on_servers: ClassVar[bool] = False

    def __init__(self, station: Station) -> None:
        self._station = station
        self._go: Go | None = None
        self._leases: deque[Lease] = deque()

    def draw(self) -> tuple[Lease, ...] | None:
        """The next lease that was granted."""
        return (self._leases.popleft(),) if self._leases else None

    def follow(self, message: ToWorker) -> None:
        """A step may start, is void, or there is none."""
        match message:
            case Go():
                if message.settings is not None:
                    self._station.steering.settings = Settings(**message.settings)  # type: ignore[arg-type]
                self._start_step(message)
                self._leases.extend(message.leases)
                self._go, self._station.may_step = message, True
            case Cancelled(number=number) if self._go is not None and self._go.number == number:
                self._go = None
            case Over():
                self._station.over = True

    def skip_step(self, samples: int) -> None:
        """Say so, and wait for the next `Go`; of a cancelled step the hub knows."""
        if self._go is not None:
            self._station.link.send(Skipped(self._go.number, samples))
            self._go = None
            self._station.wait()

    def _start_step(self, go: Go) -> None:
        """Make ready for the step."""


class Pushing(Granted):
    """Every step starts from the servers' parameters and ends in a push.

    Args:
        station: the worker's.
        swaps: whether the parameters of the next step come while the gradients of this one go. They are without them,
            and the hub is told which version they are.
    """

    on_servers: ClassVar[bool] = True

    def __init__(self, station: Station, swaps: bool = False) -> None:
        super().__init__(station)
        self._swaps = swaps
        self._swapped: int | None = None
        self._pulled_s = 0.0

    def before_step(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile, and keep the script's optimizer from them."""
        self._push(samples)
        self._station.replica.hide_gradients()

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
        if self._swaps:
            self._swapped = station.link.swap(go.number)
        else:
            station.link.push(go.number)
        transfer_s = self._pulled_s + station.clock() - start
        settings, read = station.replica.settings(), station.version if self._swaps else None
        station.link.send(
            Pushed(go.number, samples, station.computed_s, transfer_s, station.loss, settings=settings, read=read)
        )

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
