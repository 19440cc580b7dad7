"""Windows of steps, and times of other clocks."""

import pytest

from polyrhythm.core.token_window import PERIOD_S, TokenWindow


def windows(step_s: float, count: int) -> list[int]:
    """Windows of ranks whose steps take so long."""
    pace, steps, found = TokenWindow(0.0), 0, []
    for _ in range(count):
        found.append(pace.window(steps, steps * step_s))
        steps += found[-1]
    return found


def test_short_steps_are_told_of_together_and_long_ones_at_once() -> None:
    assert windows(PERIOD_S / 100, 7) == [1, 2, 4, 8, 16, 16, 16]
    assert windows(PERIOD_S / 3.5, 5) == [1, 2, 3, 3, 3]
    assert windows(PERIOD_S, 3) == windows(1.0, 3) == [1, 1, 1]


def test_steps_that_become_slow_shrink_the_window_at_once() -> None:
    pace = TokenWindow(0.0)
    assert [pace.window(0, 0.0), pace.window(1, 0.001), pace.ahead] == [1, 2, 1]
    assert [pace.window(3, 8.0), pace.ahead] == [1, 0]
    assert pace.window(4, 8.0) == 2, "no time has passed"


def test_times_of_another_clock() -> None:
    """The worker's clock is 100 s ahead, and messages take 1 s and, held back, longer."""
    pace = TokenWindow(0.0)
    assert pace.time_of(0, 101.0, 2.0) == 2.0
    assert [pace.time_of(0, at_s, 9.0) for at_s in (104.0, 108.0)] == [5.0, 9.0]
    assert pace.time_of(0, 110.5, 11.0) == 11.0
    assert pace.time_of(0, 112.5, 14.0) == pytest.approx(13.0)
    assert pace.time_of(1, None, 15.0) == 15.0
