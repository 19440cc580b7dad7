import random

import pytest

from polyrhythm.policies._lib.quantile import Quantile


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_the_share_below_is_held_whatever_the_start(share: float) -> None:
    draw = random.Random(0)
    values = [draw.lognormvariate(-1.0, 0.5) for _ in range(20_000)]
    for start in (-8.0, 0.0, 3.0):
        quantile, below = Quantile(share, start), 0
        for value in values:
            below += value <= quantile.value
            quantile = quantile.after(value)
        assert below / len(values) == pytest.approx(share, abs=0.03)


def test_it_follows_a_drift() -> None:
    quantile = Quantile(0.5)
    for level in (1.0, 50.0, 0.2):
        for step in range(2_000):
            quantile = quantile.after(level * (1 + 0.1 * (step % 3)))
        assert quantile.value == pytest.approx(1.1 * level, rel=0.15)
