"""When a rank arrives at the exchange on a device, and when it is over, without waiting for the device.

Two events are recorded in each step: one behind the last kernel of the backward pass, before the exchange is waited
for, and one behind the exchange. They are only asked whether they have passed, and read when they have; if the device
is far behind, steps are left out. Nothing here ever waits for a stream.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

MOST_PENDING = 64
"""Steps whose events have not passed yet; further ones are left out."""


class DeviceEvent(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class DeviceStep(NamedTuple):
    """A step whose events are under way; `sums` is what the host has counted of it."""

    step: int
    sums: dict[str, int]
    began_ns: int
    arrival: DeviceEvent
    end: DeviceEvent


class DeviceStamps:
    """Times of one rank's exchanges on its device, as if they were on a clock of the host.

    Args:
        make: a new event that can be timed.
        busy: whether nothing may be asked of the device now, as while a graph is captured.
    """

    def __init__(self, make: Callable[[], DeviceEvent], busy: Callable[[], bool] = lambda: False) -> None:
        self._make, self._busy = make, busy
        self._free: deque[DeviceEvent] = deque()
        self._pending: deque[DeviceStep] = deque()
        self._arrival: DeviceEvent | None = None
        self._last: DeviceEvent | None = None
        self._last_ns = 0

    def arrive(self) -> None:
        """The last kernel of the backward pass has been launched."""
        if self._arrival is None and len(self._pending) < MOST_PENDING and not self._busy():
            self._arrival = self._recorded()

    def end(self, step: int, sums: dict[str, int], began_ns: int) -> None:
        """The exchange has been handed to the device, and what comes next waits for it there."""
        if self._arrival is None or self._busy():
            return
        self._pending.append(DeviceStep(step, sums, began_ns, self._arrival, self._recorded()))
        self._arrival = None

    def passed(self) -> Iterator[tuple[DeviceStep, int, int]]:
        """Steps that are through, with the times of arrival and end in nanoseconds."""
        while self._pending and not self._busy() and self._pending[0].end.query():
            done = self._pending.popleft()
            end_ns = self._after(done)
            yield done, end_ns - nanoseconds(done.arrival, done.end), end_ns
            self._free.append(done.arrival)

    def _after(self, done: DeviceStep) -> int:
        """Each end is so long after the one before: single differences are exact, long ones are not."""
        if self._last is None:
            self._last_ns = done.began_ns
        else:
            self._last_ns += nanoseconds(self._last, done.end)
            self._free.append(self._last)
        self._last = done.end
        return self._last_ns

    def _recorded(self) -> DeviceEvent:
        event = self._free.popleft() if self._free else self._make()
        event.record()
        return event


def nanoseconds(start: DeviceEvent, end: DeviceEvent) -> int:
    return round(1e6 * start.elapsed_time(end))
