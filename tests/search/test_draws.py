from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.search import draws
from polyrhythm.search.draws import means_of

POOLS = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=5)


@given(POOLS, st.integers(1, 4), st.booleans(), st.floats(-1, 9))
def test_listed_draws_are_all_draws(pool: list[float], runs: int, replacement: bool, mark: float) -> None:
    means = means_of(pool, runs, replacement, 0, np.random.default_rng(0))
    drawn = list(product(pool, repeat=runs) if replacement else permutations(pool, min(runs, len(pool))))
    share = sum(sum(draw) / len(draw) >= mark - draws.ROUNDING for draw in drawn) / len(drawn)
    assert means.exact
    assert means.at_least(np.array([mark]))[0] == pytest.approx(share)
    assert means.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("replacement", [False, True])
def test_sampled_draws_come_near(replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, marks = [0.90, 0.91, 0.93, 0.96], np.array([0.91, 0.925, 0.94])
    exact = means_of(pool, 2, replacement, 0, np.random.default_rng(0)).at_least(marks)
    monkeypatch.setattr(draws, "ENUMERABLE", 1)
    sampled = means_of(pool, 2, replacement, 20_000, np.random.default_rng(0))
    assert not sampled.exact
    assert sampled.at_least(marks) == pytest.approx(exact, abs=0.02)


def test_a_mean_that_equals_the_mark_but_for_rounding_reaches_it() -> None:
    means = means_of([0.1, 0.2, 0.3], 3, False, 0, np.random.default_rng(0))
    assert means.at_least(np.array([(0.1 + 0.2 + 0.3) / 3 + 1e-16])).tolist() == [1.0]
