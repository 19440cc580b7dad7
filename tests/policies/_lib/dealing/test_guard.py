"""How unequal shares may be: what a worker that becomes slow would cost is never more than what the job can spare."""

import pytest

from polyrhythm.policies._lib.dealing.guard import FACTOR, NOISE, GuardedStep, ShareGuard
from polyrhythm.policies._lib.dealing.step_time import StepTime

TIMES = [StepTime(sample_s=1 / 16, spread=0.05)] * 3 + [StepTime(sample_s=4 / 16, spread=0.05)]
BEST = (20, 19, 19, 6)


def round_of(shares: tuple[int, ...]) -> list[GuardedStep]:
    return [GuardedStep(time.expected_s(share), time.expected_s(16)) for time, share in zip(TIMES, shares, strict=True)]


@pytest.mark.parametrize("rounds", [0, 8, 40, 400])
@pytest.mark.parametrize("risk", [0.0, 0.02, 0.2])
def test_a_worker_that_becomes_slow_costs_no_more_than_can_be_spared(rounds: int, risk: float) -> None:
    guard = ShareGuard(risk, bsp_s=4.0 * rounds, round_s=4.0, trusts=True)
    shares = guard.afforded(TIMES, BEST, 16)
    late_s = [
        FACTOR * (1 + NOISE * time.spread) * (time.expected_s(b) - time.expected_s(16))
        for time, b in zip(TIMES, shares, strict=True)
    ]
    assert sum(shares) == 64
    assert max(late_s) <= guard.spare_s + 1e-9
    assert shares != BEST or risk > 0


def test_shares_grow_with_the_time_that_they_save() -> None:
    guard, found = ShareGuard(0.02, bsp_s=20.0, beyond_s=0.0, trusts=True), []
    for _ in range(6):
        found.append(guard.afforded(TIMES, BEST, 16))
        steps = round_of(found[-1])
        guard = guard.after(steps, max(step.step_s for step in steps))
    assert found[0] != BEST
    assert found[-1] == BEST
    assert guard.ahead_s > 3.0


def test_an_exchange_that_takes_longer_when_all_come_together_counts() -> None:
    """Where links are what is slow, shares save nothing; nothing is gained on paper either."""
    guard = ShareGuard(0.02, bsp_s=20.0, beyond_s=1.0, round_s=4.0)
    for _ in range(8):
        steps = round_of(BEST)
        guard = guard.after(steps, 5.0)
    assert guard.ahead_s == pytest.approx(0.0)
    assert not guard.pays


def test_what_is_in_force_late_is_allowed_for() -> None:
    """Sixteen rounds of a small loss are as much as one of a large one, and short steps have many rounds."""
    late = ShareGuard(0.02, bsp_s=20.0, round_s=4.0, delay=15, trusts=True)
    prompt = ShareGuard(0.02, bsp_s=20.0, round_s=4.0, trusts=True)
    assert late.afforded(TIMES, BEST, 16) == prompt.afforded(TIMES, BEST, 16) != (16,) * 4


def test_shares_stay_equal_until_a_round_has_shown_that_they_pay() -> None:
    guard = ShareGuard(0.02, bsp_s=20.0, round_s=4.0)
    assert guard.afforded(TIMES, BEST, 16) == (16,) * 4
    whole = [time.expected_s(16) for time in TIMES]
    for _ in range(2):  # the first one tells of the shares that the second is held against
        guard = guard.foreseen(TIMES, whole, 16, most=64, exchange_s=0.0)
    assert guard.afforded(TIMES, BEST, 16) != (16,) * 4
