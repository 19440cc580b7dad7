"""The policy on losses."""

import math

import pytest

from polyrhythm.training.divergence import LossWatch


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite(loss: float) -> None:
    assert f"is {loss}" in str(LossWatch(factor=math.inf).see(loss))


def test_losses_that_stay_or_fall_are_fine() -> None:
    watch = LossWatch()
    assert not any(watch.see(2.3) for _ in range(1000))
    assert not any(watch.see(2.3 / k) for k in range(1, 1000))


def test_single_outliers_are_fine() -> None:
    watch = LossWatch(window=50)
    assert not any(watch.see(100.0 if k % 50 == 49 and k > 50 else 1.0) for k in range(1000))


def test_an_explosion_is_found_within_two_windows() -> None:
    watch = LossWatch(window=50)
    found = [k for k in range(300) if watch.see(1.0 if k < 120 else 30.0)]
    assert found[0] < 200


def test_a_trained_model_may_get_a_little_worse() -> None:
    watch = LossWatch(window=10)
    assert not any(watch.see(1e-4 if k < 10 else 0.4) for k in range(100))
