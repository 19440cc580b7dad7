import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.policies._lib.dealing.step_time import NO_STEPS, StepTime

quiet = settings(max_examples=100, deadline=None, derandomize=True, database=None)
parts = st.floats(0.001, 10.0)


def learned(steps: list[tuple[int, float]], time: StepTime | None = None) -> StepTime:
    time = time or StepTime()
    for samples, step_s in steps:
        time = time.after(samples, step_s)
    return time


@quiet
@given(step_s=parts, samples=st.integers(1, 500), steps=st.integers(1, 5))
def test_one_size_is_taken_for_time_in_proportion(step_s: float, samples: int, steps: int) -> None:
    time = learned([(samples, step_s)] * steps)
    assert time.fixed_s == 0
    assert time.expected_s(3 * samples) == pytest.approx(3 * step_s)


@quiet
@given(fixed_s=parts, sample_s=st.floats(0.001, 0.1))
def test_two_sizes_tell_the_fixed_part(fixed_s: float, sample_s: float) -> None:
    line = [(b, fixed_s + sample_s * b) for b in (64, 64, 40, 40, 40, 40)]
    time = learned(line)
    assert time.expected_s(40) == pytest.approx(fixed_s + 40 * sample_s, rel=0.15)
    assert 0 <= time.fixed_s <= 1.05 * (fixed_s + 64 * sample_s)


def test_a_line_without_noise_is_found() -> None:
    time = learned([(b, 0.5 + 0.01 * b) for b in (64, 64, 64, 20, 20, 100, 100, 100)])
    assert time.fixed_s == pytest.approx(0.5, rel=0.1)
    assert time.sample_s == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_change_for_good_is_found_within_a_few_steps(factor: float) -> None:
    noise = random.Random(3)
    before = learned([(32, noise.gauss(1.0, 0.05)) for _ in range(60)])
    after = learned([(32, factor * noise.gauss(1.0, 0.05)) for _ in range(6)], before)
    assert after.expected_s(32) == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("odd", [0.01, 10.0])
def test_one_odd_step_changes_little(odd: float) -> None:
    noise = random.Random(3)
    before = learned([(32, noise.gauss(1.0, 0.05)) for _ in range(60)])
    after = learned([(32, odd)], before)
    assert after.expected_s(32) == pytest.approx(before.expected_s(32), rel=0.02)


def test_transfers_count_whatever_the_size() -> None:
    time = StepTime()
    for _ in range(20):
        time = time.after(10, 1.0, transfer_s=3.0)
    assert time.expected_s(20) == pytest.approx(5.0)


def test_steps_that_take_no_time_are_no_error() -> None:
    assert learned([(1, 0.0)] * 5).expected_s(1) > 0


@pytest.mark.parametrize(("samples", "step_s", "times"), [(16, 0.1, 16), (1, 1 / 3, 7), (12, 2.7, 0)])
def test_equal_steps_at_once_are_those_one_by_one_to_the_bit(samples: int, step_s: float, times: int) -> None:
    begun = one_by_one = NO_STEPS.plus(5, 0.3)
    for _ in range(times):
        one_by_one = one_by_one.plus(samples, step_s)
    assert begun.repeated(samples, step_s, times) == one_by_one
