"""Virtual time: what happens when, in order of time and, at one time, in order of scheduling."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeAlias

EventHandler: TypeAlias = Callable[[Any], None]


class Appointment(Protocol):
    """What an appointment is about; once its serial has moved on, the appointment is void."""

    serial: int


@dataclass(slots=True, eq=False)
class Reminder:
    """Something to be reminded of that nobody revokes."""

    about: Any
    serial: int = 0


@dataclass(slots=True)
class Calendar:
    """Appointments on a heap.

    Example:
        >>> calendar = Calendar()
        >>> for about in ("first", "second"):
        ...     calendar.at(2.0, lambda timer: print(timer.about, calendar.now_s), Reminder(about))
        >>> calendar.advance(), calendar.advance(), calendar.advance()
        first 2.0
        second 2.0
        (True, True, False)
    """

    limit_s: float = math.inf
    now_s: float = 0.0
    appointments: list[tuple[float, int, EventHandler, Any, int]] = field(default_factory=list)
    next_order: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def at(self, time_s: float, handler: EventHandler, about: Appointment) -> None:
        """Call ``handler(about)`` then, unless the serial of `about` has moved on."""
        heapq.heappush(self.appointments, (time_s, self.next_order(), handler, about, about.serial))

    def advance(self) -> bool:
        """Keep the next appointment; False if there is none before the time limit, which is then the time."""
        while self.appointments:
            time_s, _, handler, about, serial = heapq.heappop(self.appointments)
            if about.serial != serial:
                continue
            if time_s > self.limit_s:
                self.now_s = self.limit_s
                return False
            self.now_s = time_s
            handler(about)
            return True
        return False
