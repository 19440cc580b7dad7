"""Spinning: for an answer that is about to come, falling asleep and being woken up takes longer than the answer.

Whoever waits looks again and again for a short time, unless someone else can use the processor, and sleeps only then. A
process whose answers do not come in that time seldom tries.
"""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

Answer = TypeVar("Answer")

SPIN_S: Final = 200e-6
"""How long a waiting process spins: a few times what a wake-up takes on a virtual machine."""
ALONE_S: Final = 60e-6
"""How long before that it does not offer the processor to others: switching to them costs more than a quick answer."""
TAKEN_S: Final = 100e-6
"""A processor that comes back later than that when it is offered to others was taken by one."""
MOST_SKIPPED: Final = 63
"""Waits in a row that do without, after attempts that came to nothing."""


class Attempts:
    """When to try what may come to nothing: after each failure in a row, after twice as many waits without."""

    def __init__(self) -> None:
        self._failed = self._skip = 0

    def due(self) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        return True

    def ended(self, well: bool) -> None:
        self._skip = self._failed = 0 if well else min(2 * self._failed + 1, MOST_SKIPPED)


class Spinner:
    """Decides how long to spins, from what became of it before.

    Args:
        clock: seconds.
        offer: lets others have the processor.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, offer: Callable[[], None] = os.sched_yield
    ) -> None:
        self._clock = clock
        self._offer = offer
        self._spinning, self._alone = Attempts(), Attempts()

    def look(self, look: Callable[[], Answer], limit_s: float = SPIN_S) -> Answer | None:
        """What `look` finds at once or soon; None if it finds nothing, or if it is not worth the attempt now."""
        if not self._spinning.due():
            return None
        if at_once := look():
            return at_once
        kept = self._keep_looking(look, min(limit_s, ALONE_S)) if self._alone.due() else None
        found = kept or self._offer_and_look(look, limit_s)
        self._spinning.ended(bool(found))
        return found

    def _keep_looking(self, look: Callable[[], Answer], limit_s: float) -> Answer | None:
        end = self._clock() + limit_s
        while not (found := look()) and self._clock() < end:
            pass
        self._alone.ended(bool(found))
        return found

    def _offer_and_look(self, look: Callable[[], Answer], limit_s: float) -> Answer | None:
        now = self._clock()
        end = now + limit_s
        while now < end:
            self._offer()
            before, now = now, self._clock()
            if (found := look()) or now - before > TAKEN_S:
                return found
        return None
