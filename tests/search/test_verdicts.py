import random

import pytest

from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.verdicts import AccuracySample, Noise, Verdict, verdict_of

MEANS = SearchPlan(error_rate=0.5, early=0.0)


def outcomes(*accuracies: float, diverged: int = -1) -> list[TrialOutcome]:
    return [TrialOutcome(SearchTrial("x", run), a, 1.0, 1.0, run == diverged) for run, a in enumerate(accuracies)]


def verdict(plan: SearchPlan, target: float, *accuracies: float) -> Verdict | None:
    return verdict_of(plan, AccuracySample(target, 0.0, 1), Noise(0.004**2 * 8, 8), outcomes(*accuracies))


def test_means_are_compared_at_an_error_rate_of_a_half() -> None:
    assert verdict(MEANS, 0.9, 0.89, 0.89, 0.89) == Verdict(True, 3)
    assert verdict(MEANS, 0.9, 0.89, 0.89, 0.889) == Verdict(False, 3)
    assert verdict(MEANS, 0.9, 0.95, 0.95, 0.95) == Verdict(True, 3)


def test_two_sided_also_rejects_what_is_better() -> None:
    plan = SearchPlan(error_rate=0.5, early=0.0, two_sided=True)
    assert verdict(plan, 0.9, 0.91, 0.91, 0.91) == Verdict(True, 3)
    assert verdict(plan, 0.9, 0.95, 0.95, 0.95) == Verdict(False, 3)


def test_more_runs_are_needed_until_all_are_there() -> None:
    assert verdict(MEANS, 0.9, 0.1, 0.1) is None
    assert verdict(MEANS, 0.9) is None


def test_a_run_that_diverged_fails_the_candidate_at_once_or_after_all_runs() -> None:
    early, target = SearchPlan(error_rate=0.5, early=0.01), AccuracySample(0.9, 0.0, 1)
    assert verdict_of(early, target, Noise(), outcomes(0.9, 0.0, diverged=1)) == Verdict(False, 2)
    assert verdict_of(MEANS, target, Noise(), outcomes(0.9, 0.0, diverged=1)) is None
    whole = SearchPlan(error_rate=0.5, early=0.0, beta=0.9)
    assert verdict_of(whole, target, Noise(), outcomes(0.9, 0.0, 0.9, diverged=1)) == Verdict(False, 3)


def test_a_hopeless_candidate_gets_no_more_runs() -> None:
    plan = SearchPlan(error_rate=0.5, early=0.01)
    assert verdict(plan, 0.9, 0.86) == Verdict(False, 1)
    assert verdict(plan, 0.9, 0.885) is None
    assert verdict(plan, 0.9, 0.95) is None
    # Without any spread to go by nothing is hopeless.
    assert verdict_of(plan, AccuracySample(0.9, 0.0, 1), Noise(), outcomes(0.5)) is None
    assert verdict_of(plan, AccuracySample(0.9, 0.0, 3), Noise(0.0, 2), outcomes(0.5)) is None


def test_the_first_runs_that_suffice_decide() -> None:
    plan = SearchPlan(error_rate=0.5, early=0.01)
    assert verdict(plan, 0.9, 0.86, 0.99, 0.99) == Verdict(False, 1)


def test_a_candidate_that_is_sure_to_pass_does_so_for_now() -> None:
    plan, target, noise = SearchPlan(error_rate=0.5, early=0.01), AccuracySample(0.9, 0.0, 1), Noise(8e-6, 4)
    assert verdict_of(plan, target, noise, outcomes(0.9)) is None, "one run shows nothing of its own spread"
    assert verdict_of(plan, target, noise, outcomes(0.9, 0.901)) == Verdict(True, 2, certain=False)
    assert verdict_of(plan, target, noise, outcomes(0.9, 0.901), confirm=True) is None
    assert verdict_of(plan, target, noise, outcomes(0.9, 0.901, 0.86), confirm=True) == Verdict(False, 3)
    assert verdict_of(plan, target, Noise(), outcomes(0.9, 0.9)) is None, "runs that agree may share their seed"


def accepted(plan: SearchPlan, mean: float, noise: float, seed: int) -> float:
    """Share of candidates of this mean that pass against targets of 0.9."""
    rng, passed, count = random.Random(seed), 0, 2000
    for _ in range(count):
        target = AccuracySample.of([rng.gauss(0.9, noise) for _ in range(plan.runs)])
        runs = outcomes(*(rng.gauss(mean, noise) for _ in range(3)))
        found = verdict_of(plan, target, Noise().plus(target), runs, confirm=True)
        passed += found is not None and found.passed
    return passed / count


@pytest.mark.parametrize("error_rate", [0.05, 0.1, 0.5])
def test_the_error_rate_is_kept(error_rate: float) -> None:
    plan = SearchPlan(error_rate=error_rate, early=0.0)
    bad = accepted(plan, 0.9 - plan.beta, noise=0.004, seed=1)
    assert bad == pytest.approx(error_rate, abs=0.02)
    assert accepted(plan, 0.9, noise=0.004, seed=2) > 0.7


def test_early_stopping_rarely_changes_a_verdict() -> None:
    for mean in (0.9, 0.893, 0.885):
        whole = accepted(SearchPlan(early=0.0), mean, noise=0.004, seed=3)
        assert accepted(SearchPlan(early=0.01), mean, noise=0.004, seed=3) == pytest.approx(whole, abs=0.01)
