from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.policies._lib.dealing.shares import better_shares, least_s, slowest_s, split
from polyrhythm.policies._lib.dealing.step_time import StepTime

quiet = settings(max_examples=150, deadline=None, derandomize=True, database=None)
times = st.builds(
    lambda transfer_s, fixed_s, sample_s: StepTime(transfer_s=transfer_s, fixed_s=fixed_s, sample_s=sample_s),
    st.sampled_from([0.0, 0.5]),
    st.floats(0, 20),
    st.floats(0.01, 10),
)
clusters = st.lists(times, min_size=1, max_size=12)


def known(step_s: float, samples: int = 32, steps: int = 30) -> StepTime:
    time = StepTime()
    for _ in range(steps):
        time = time.after(samples, step_s)
    return time


@quiet
@given(cluster=clusters, batch_size=st.integers(1, 64), most=st.one_of(st.just(float("inf")), st.integers(1, 100)))
def test_shares_are_whole_and_add_up(cluster: list[StepTime], batch_size: int, most: float) -> None:
    shares = split(cluster, batch_size * len(cluster), most)
    assert sum(shares) == batch_size * len(cluster)
    assert min(shares) >= 1
    assert max(shares) <= max(most, batch_size)
    assert shares == split(cluster, batch_size * len(cluster), most)


@quiet
@given(cluster=st.lists(times, min_size=2, max_size=3), batch_size=st.integers(1, 5), most=st.integers(5, 9))
def test_no_other_shares_are_through_before(cluster: list[StepTime], batch_size: int, most: int) -> None:
    samples = batch_size * len(cluster)
    every = product(range(1, most + 1), repeat=len(cluster))
    best = min(slowest_s(cluster, shares) for shares in every if sum(shares) == samples)
    found = slowest_s(cluster, split(cluster, samples, most))
    assert found == pytest.approx(best)
    assert least_s(cluster, samples) <= best * (1 + 1e-9)


@quiet
@given(one=times, workers=st.integers(1, 12), batch_size=st.integers(1, 64))
def test_equal_workers_have_equal_shares(one: StepTime, workers: int, batch_size: int) -> None:
    assert split([one] * workers, batch_size * workers, float("inf")) == (batch_size,) * workers


def test_four_times_slower() -> None:
    shares = split([known(1.0), known(1.0), known(4.0), known(1.0)], 4 * 64, float("inf"))
    assert shares == (79, 79, 19, 79)


def test_a_change_that_does_not_pay_is_not_made() -> None:
    equal = (32, 32)
    assert better_shares([known(1.0), known(1.05)], equal, 32, float("inf"), exchange_s=0.0) == equal
    assert better_shares([known(1.0), known(1.5)], equal, 32, float("inf"), exchange_s=0.0) == (39, 25)
    assert better_shares([known(1.0), known(1.5)], equal, 32, float("inf"), exchange_s=20.0) == equal


def test_nearly_equal_speeds_go_back_to_equal_shares() -> None:
    assert better_shares([known(1.0), known(1.01)], (48, 16), 32, float("inf"), exchange_s=0.0) == (32, 32)
