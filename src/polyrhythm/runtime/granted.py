"""What is common to workers whose every step is granted by the hub."""

from collections import deque

from polyrhythm.core import Settings
from polyrhythm.core.workload import Lease
from polyrhythm.runtime.control import Cancelled, Go, Over, Skipped, ToWorker
from polyrhythm.runtime.station import Station


class Granted:
    """Every step needs a `Go`, which also grants what the worker may draw."""

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
