"""Waiting awake: for an answer that is about to come, falling asleep and being woken up takes longer than the answer.

Whoever waits looks again and again for a moment, unless someone else can use the processor, and sleeps only then. A
process whose answers do not come in that time seldom tries.
"""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

Found = TypeVar("Found")

SPIN_S: Final = 200e-6
"""How long a waiting process stays awake: a few times what a wake-up takes on a virtual machine."""
TAKEN_S: Final = 10e-6
"""A processor that comes back later than that when it is offered to others was taken by one."""
MOST_SKIPPED: Final = 63
"""Waits in a row that sleep at once, behind attempts that came to nothing."""


class Spinner:
    """Decides how long to stay awake, from what became of it before.

    Args:
        clock: seconds.
        offer: lets others have the processor.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, offer: Callable[[], None] = os.sched_yield
    ) -> None:
        self._clock = clock
        self._offer = offer
        self._failed = self._skip = 0

    def look(self, look: Callable[[], Found], limit_s: float = SPIN_S) -> Found | None:
        """What `look` finds at once or within the time, if it is looked for."""
        if self._skip:
            self._skip -= 1
            return None
        if found := look():
            return found
        now = self._clock()
        end = now + limit_s
        while now < end:
            self._offer()
            before, now = now, self._clock()
            if found := look():
                self._failed = 0
                return found
            if now - before > TAKEN_S:
                break
        self._skip = self._failed = min(2 * self._failed + 1, MOST_SKIPPED)
        return None
