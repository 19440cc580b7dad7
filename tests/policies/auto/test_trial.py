"""What follows from the losses and the pace of an arm on trial."""

from dataclasses import replace

import pytest

from polyrhythm.policies.auto.progress import KEPT_TRIAL, MOST_TRIAL, LossPoint, LossPoints
from polyrhythm.policies.auto.trial import ArmTrial, TrialPace


def falling(first: int, points: int, slope: float) -> tuple[LossPoint, ...]:
    """Points a step apart from a loss of 1 at step 0 on, with some noise that is none in the mean of two."""
    return tuple(
        LossPoint(8.0 * step, slope * step + (0.01 if step % 2 else -0.01)) for step in range(first, first + points)
    )


PAID = ArmTrial(speed=2.0, likely=0.9, least=0.0, exact=1.0, limit_s=10.0, reference=falling(0, 12, -0.05))
TRUSTED = replace(PAID, least=0.7)
PACE = TrialPace(speed=2.0, foretold=2.0, rounds=10.0, spent_s=5.0)


def after(trial: ArmTrial, points: int, brings: float) -> ArmTrial:
    """With points that lie where samples bring so much of what those before the trial have brought."""
    begun = -0.05 * 11
    shown = tuple(LossPoint(x, begun + (y - begun) * brings) for x, y in falling(12, points, -0.05))
    return replace(trial, losses=LossPoints(shown))


def outcome(trial: ArmTrial, pace: TrialPace = PACE) -> str:
    return trial.outcome(trial.shown, pace)


@pytest.mark.parametrize("trial", [PAID, TRUSTED])
@pytest.mark.parametrize(("brings", "found"), [(0.9, "kept"), (0.1, "worse"), (-0.5, "rises")])
def test_losses_decide(trial: ArmTrial, brings: float, found: str) -> None:
    assert outcome(after(trial, KEPT_TRIAL, brings)) == found


def test_a_trial_that_is_paid_for_ends_with_its_limit() -> None:
    spent = PACE._replace(spent_s=10.1)
    assert [outcome(trial, spent) for trial in (PAID, TRUSTED)] == ["spent", "open"]


def test_what_was_expected_counts_until_there_are_enough_points() -> None:
    few = after(replace(TRUSTED, ripe=8), 7, brings=0.0)
    assert few.shown == TRUSTED.shown
    assert outcome(few) == "open"


def test_what_its_losses_show_outweighs_what_was_expected() -> None:
    sure = replace(TRUSTED, likely=1.8, least=1.8)
    assert after(sure, KEPT_TRIAL, brings=0.5).shown.likely < 0.9


def test_a_trusted_arm_is_kept_at_the_end_if_it_is_likely_better() -> None:
    """Though its losses do not surely say so."""
    pace = PACE._replace(speed=1.25, foretold=1.25, rounds=70.0)
    trials = [after(trial, MOST_TRIAL, brings=0.9) for trial in (PAID, TRUSTED)]
    assert [outcome(trial, pace._replace(spent_s=9.0)) for trial in trials] == ["spent", "kept"]


@pytest.mark.parametrize("trial", [PAID, TRUSTED])
def test_an_arm_that_is_not_fast_after_all_goes(trial: ArmTrial) -> None:
    assert outcome(trial, PACE._replace(foretold=1.05, rounds=2.0)) == "slow"
    assert outcome(trial, PACE._replace(foretold=None, speed=0.6, rounds=4.0)) == "slow"


def test_expectations_alone_pass_no_trial() -> None:
    """The reference does not surely fall, and the trial's losses stand still."""
    wavering = tuple(LossPoint(8.0 * step, -0.02 * step + (0.05 if step % 2 else -0.05)) for step in range(5))
    flat = LossPoints(tuple(LossPoint(8.0 * step, -0.1) for step in range(5, 5 + KEPT_TRIAL)))
    assert outcome(replace(TRUSTED, reference=wavering, losses=flat), PACE._replace(speed=3.0)) != "kept"


def test_losses_that_break_out_end_a_trial_before_it_is_ripe() -> None:
    high = tuple(LossPoint(8.0 * step, 0.3) for step in (12, 13))
    trials = [replace(TRUSTED, ripe=32, losses=LossPoints(high[:count])) for count in (1, 2)]
    assert [outcome(trial) for trial in trials] == ["open", "rises"]


def test_a_slow_beginning_is_no_verdict_on_what_samples_bring() -> None:
    """Workers start anew; nothing has been learned of the losses yet."""
    assert outcome(after(TRUSTED, 3, brings=0.9), PACE._replace(speed=0.7, rounds=3.0)) == "open"


def test_an_arm_is_kept_with_no_more_than_theory_lets_its_samples_bring() -> None:
    trial = after(TRUSTED, KEPT_TRIAL, brings=2.0)
    assert trial.seen.least > 1
    assert trial.shown.least <= trial.shown.likely == 1.0 < trial.shown.most
