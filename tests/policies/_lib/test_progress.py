from math import inf, isclose, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.policies._lib.progress import LEAST_PAIRS, POINTS, Duel, LossWindow, Match, healthy

quiet = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def filled(losses: list[float]) -> LossWindow:
    window = LossWindow(len(losses))
    for time_s, loss in enumerate(losses):
        window = window.add(float(time_s), loss)
    return window


@quiet
@given(st.integers(2, 200), st.floats(1.0, 100.0), st.floats(-0.004, 0.004))
def test_rate_of_a_line(size: int, level: float, rate: float) -> None:
    middle = (size - 1) / 2
    window = filled([level * (1 - rate * (at - middle)) for at in range(size)])
    if size <= POINTS:
        assert isclose(window.rate, rate, abs_tol=1e-9)
    assert window.full
    assert len(window.points) <= POINTS


@quiet
@given(st.integers(0, 19), st.floats(1.0, 1e6))
def test_one_wild_mini_batch_does_not_turn_the_slope(at: int, wild: float) -> None:
    losses = [10.0 - 0.1 * step for step in range(20)]
    losses[at] *= 1 + wild
    assert -0.11 < filled(losses).slope < -0.09


def test_a_window_without_use() -> None:
    assert LossWindow(3).rate == 0.0
    assert filled([0.0, 0.0]).rate == 0.0
    assert filled([1.0, nan]).rate == -inf
    assert LossWindow(2).add(1.0, 2.0).add(1.0, 1.0).slope == 0.0


def test_nothing_is_concluded_from_few_pairs() -> None:
    duel = Duel()
    for _ in range(LEAST_PAIRS - 1):
        duel = duel.add(1.0)
    assert not duel.won(2.0)
    assert duel.add(1.0).won(2.0)
    assert not duel.add(1.0).lost(2.0)


def play(rates: list[float], every: int, windows: int, drift: float = 0.0) -> Match:
    match = Match.of(len(rates))
    for window in range(windows):
        match = match.next(rates[match.playing] + drift * window, every, z=2.0)
    return match


@pytest.mark.parametrize("best", [0, 1, 2])
@pytest.mark.parametrize("drift", [0.0, -0.05])
def test_the_best_arm_takes_the_place(best: int, drift: float) -> None:
    rates = [1.0, 1.0, 1.0]
    rates[best] = 1.5
    assert play(rates, every=3, windows=60, drift=drift).holder == best


def test_trials_end_once_all_have_lost() -> None:
    match = play([1.0, 0.5], every=2, windows=30)
    assert (match.holder, match.playing) == (0, 0)
    assert match.duels[1].pairs == LEAST_PAIRS


def test_a_trial_in_so_many_windows() -> None:
    match, played = Match.of(2), []
    for _ in range(12):
        played.append(match.playing)
        match = match.next(1.0, 4, z=2.0)
    assert played == [0, 0, 0, 1] * 3


def test_a_loss_that_is_not_finite_concludes_nothing() -> None:
    match = Match.of(2)
    for _ in range(20):
        match = match.next(-inf if match.playing else 1.0, 2, z=2.0)
    assert match.holder == 0


def test_healthy() -> None:
    assert healthy([1.0] * 4) == 4
    assert healthy([1.0, 1.0, 1.0, 9.0]) == 3
    assert healthy([inf, inf]) == 2
