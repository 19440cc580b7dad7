import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.schedule import RateSchedule, schedule_of


def test_constant_is_one() -> None:
    assert {RateSchedule(100)(samples) for samples in (0, 50, 100, 1000)} == {1.0}


def test_steps_come_exactly_at_their_share() -> None:
    schedule = RateSchedule(64_000, "step", decay_at=(0.5, 0.75))
    assert [round(schedule(s), 6) for s in (0, 31_999, 32_000, 47_999, 48_000, 64_000)] == [1, 1, 0.1, 0.1, 0.01, 0.01]


def test_cosine_goes_from_one_over_a_half_to_zero() -> None:
    schedule = RateSchedule(100, "cosine")
    assert [schedule(samples) for samples in (0, 50, 100, 120)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_warm_up_is_linear_and_multiplies_the_schedule() -> None:
    schedule = RateSchedule(100, "step", decay_at=(0.05,), warmup=0.1)
    assert [schedule(samples) for samples in (0, 4, 5, 10, 50)] == pytest.approx([0.0, 0.4, 0.05, 0.1, 0.1])


@settings(derandomize=True, max_examples=100)
@given(st.integers(1, 10**7), st.integers(0, 10**7), st.sampled_from(["constant", "step", "cosine"]), st.floats(0, 0.9))
def test_the_factor_depends_on_the_share_alone(total: int, samples: int, kind: str, warmup: float) -> None:
    shares = (0.3, 0.6) if kind == "step" else ()
    small, large = (RateSchedule(total * k, kind, shares, 0.5, warmup) for k in (1, 4))  # type: ignore[arg-type]
    assert small(samples) == large(4 * samples)
    assert 0.0 <= small(samples) <= 1.0


def test_a_configuration_says_which() -> None:
    config = TrainingConfig(schedule="step", decay_at=(0.5,), decay_factor=0.2, warmup=0.1)
    assert schedule_of(config, 1000) == RateSchedule(1000, "step", (0.5,), 0.2, 0.1)
