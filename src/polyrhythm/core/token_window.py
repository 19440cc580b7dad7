"""How many steps in synchronous mode the coordinator hears of at a time, and when they were complete on its own
clock.
"""

import math

PERIOD_S = 0.25
"""Ranks whose steps are shorter tell of several at once: whoever wants them to stop waits for two periods at most."""

MOST = 16
"""Steps of one period; steps that become slow suddenly hold up a stop by no more than twice as many."""


class TokenWindow:
    """Adapts the length of a window of steps to how long they take; it grows twofold at most, and shrinks at once.

    Args:
        time_s: when the first window starts.

    Example:
        >>> pace = TokenWindow(time_s=0.0)
        >>> pace.window(0, 0.0), pace.window(1, 0.001), pace.window(3, 0.003), pace.window(7, 0.007)
        (1, 2, 4, 8)
        >>> pace.window(15, 8.0)
        1
    """

    def __init__(self, time_s: float) -> None:
        self._time_s, self._steps, self._window = time_s, 0, 1
        self._ahead: dict[int, float] = {}

    def window(self, steps: int, time_s: float) -> int:
        """Steps of the next window, now that so many are complete."""
        elapsed_s, made = time_s - self._time_s, steps - self._steps
        if made > 0:
            fitting = int(PERIOD_S * made / elapsed_s) if elapsed_s > 0 else MOST
            self._window = max(1, min(fitting, 2 * self._window, MOST))
        self._time_s, self._steps = time_s, steps
        return self._window

    @property
    def ahead(self) -> int:
        """Steps before the end of a window at which the next one is granted."""
        return self._window // 2

    def time_of(self, worker: int, at_s: float | None, now_s: float) -> float:
        """When a worker's clock showed `at_s`: never later than now, and as early as its quickest message allows."""
        if at_s is None:
            return now_s
        ahead = self._ahead[worker] = min(self._ahead.get(worker, math.inf), now_s - at_s)
        return at_s + ahead
