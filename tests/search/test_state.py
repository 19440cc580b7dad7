import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import PolyrhythmError
from polyrhythm.search.plan import Knob, SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.state import SearchState, cost_of, next_trials, progress_of, tell
from tests.search.jobs import knee, searched, share_of

ALGORITHM_1 = SearchPlan(error_rate=0.5, early=0.0, two_sided=True)
FIRST_FAILURE = SearchPlan(error_rate=0.5, early=0.0, walk="first-failure")


def algorithm_1(plan: SearchPlan, at: float) -> float:
    """The pseudo code, line by line, on a job without noise; the sum of a candidate's runs starts at 0 each time."""
    job = knee(at, noise=0.0)
    target = sum(job(SearchTrial("switch:bsp@1,asp", r)).accuracy for r in range(plan.runs)) / plan.runs
    upper, lower, m = 100.0, 0.0, 0
    while m < plan.settings:
        total, switching_timing = 0.0, (upper + lower) / 2
        for r in range(plan.runs):
            total += job(SearchTrial(f"switch:bsp@{switching_timing / 100:.10g},asp", r)).accuracy
        if target - plan.beta <= total / plan.runs <= target + plan.beta:
            upper = switching_timing
        else:
            lower = switching_timing
        m += 1
    return upper / 100


@given(st.floats(0.001, 0.999), st.integers(1, 6))
@settings(max_examples=40)
def test_the_literal_search_is_the_published_one(at: float, count: int) -> None:
    plan = SearchPlan(settings=count, error_rate=0.5, early=0.0, two_sided=True)
    state = searched(plan, knee(at, noise=0.0))
    assert progress_of(state).best == algorithm_1(plan, at)
    assert len(state.outcomes) == plan.runs * (1 + count)


@pytest.mark.parametrize(("at", "answer", "tried"), [(0.2, 0.25, 3), (0.01, 0.03125, 5), (0.6, 1.0, 1)])
def test_the_variant_ends_at_the_first_failure(at: float, answer: float, tried: int) -> None:
    progress = progress_of(searched(FIRST_FAILURE, knee(at)))
    assert (progress.best, len(progress.visited)) == (answer, tried)
    shares = [visited.position for visited in progress.visited]
    assert all(later == earlier / 2 for earlier, later in pairwise(shares))


@pytest.mark.parametrize("seed", range(5))
def test_stopping_early_gives_the_same_answer_with_fewer_runs(seed: int) -> None:
    job = knee(0.3, seed=seed)
    whole, early = searched(SearchPlan(error_rate=0.5, early=0.0), job), searched(SearchPlan(error_rate=0.5), job)
    assert progress_of(early).best == progress_of(whole).best
    assert len(early.outcomes) < len(whole.outcomes)
    assert cost_of(early).share < 0.9 < cost_of(whole).share == pytest.approx(1.0)
    assert cost_of(early).algorithm_1_s == pytest.approx(cost_of(whole).spent_s)


def scripted(*rows: tuple[float, float, float]) -> Callable[[SearchTrial], TrialOutcome]:
    """A job with these accuracies at 100, 50, 25 ... % under BSP."""

    def run(trial: SearchTrial) -> TrialOutcome:
        return TrialOutcome(trial, rows[SHARES.index(share_of(trial))][trial.run], 1.0, 1.0)

    return run


SHARES = (1.0, 0.5, 0.25, 0.375)
GOOD, BAD = (0.9, 0.901, 0.902), (0.85, 0.85, 0.85)
TWO_STEPS = SearchPlan(settings=2, error_rate=0.5)


def counts(state: SearchState) -> dict[float, int]:
    return {share: len(state.of(f"switch:bsp@{share:g},asp")) for share in SHARES[1:3]}


def test_what_passes_for_now_makes_all_its_runs_only_if_it_is_the_answer() -> None:
    onward = searched(TWO_STEPS, scripted(GOOD, GOOD, GOOD))
    assert (progress_of(onward).best, counts(onward)) == (0.25, {0.5: 2, 0.25: 3})
    back = searched(TWO_STEPS, scripted(GOOD, GOOD, BAD))
    assert (progress_of(back).best, counts(back)) == (0.5, {0.5: 3, 0.25: 1})


def test_an_answer_that_fails_in_the_end_is_none() -> None:
    """Its third run collapses, so the walk is made again, as Algorithm 1 would have made it."""
    state = searched(TWO_STEPS, scripted(GOOD, GOOD, (0.9, 0.901, 0.6)))
    progress = progress_of(state)
    assert (progress.best, counts(state)) == (0.5, {0.5: 3, 0.25: 3})
    assert [visited.verdict.passed for visited in progress.visited] == [True, False]


@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_order_of_outcomes_does_not_matter(seed: int, at_most: int) -> None:
    rng, job, plan = random.Random(seed), knee(0.3), SearchPlan()
    state = SearchState(plan)
    while trials := next_trials(state, at_most):
        for trial in rng.sample(trials, len(trials)):
            state = tell(state, job(trial))
    shuffled = SearchState(plan, tuple(rng.sample(state.outcomes, len(state.outcomes))))
    assert next_trials(shuffled) == ()
    assert progress_of(shuffled) == progress_of(state) == progress_of(searched(plan, job))


@given(st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_a_search_goes_on_from_any_of_its_beginnings(cut: int) -> None:
    plan, job = SearchPlan(), knee(0.3)
    whole = searched(plan, job)
    state = SearchState(plan, whole.outcomes[:cut])
    while trials := next_trials(state):
        state = tell(state, job(trials[0]))
    assert state.outcomes == whole.outcomes


def test_a_target_that_is_given_needs_no_baseline_runs() -> None:
    state = searched(SearchPlan(target=0.9), knee(0.3))
    assert all(outcome.trial.spec != "switch:bsp@1,asp" for outcome in state.outcomes)
    assert 0.3 <= progress_of(state).best < 0.35
    assert cost_of(state).share <= 1


def test_baseline_runs_may_all_go_side_by_side() -> None:
    assert next_trials(SearchState(SearchPlan()), at_most=8) == tuple(
        SearchTrial("switch:bsp@1,asp", run) for run in range(3)
    )


def test_a_baseline_that_diverges_ends_the_search() -> None:
    state = SearchState(SearchPlan(), (TrialOutcome(SearchTrial("switch:bsp@1,asp", 0), 0.0, 1.0, 1.0, diverged=True),))
    with pytest.raises(PolyrhythmError, match=r"baseline switch:bsp@1,asp diverged in run 0; lower its learning rate"):
        next_trials(state)


def test_an_outcome_is_told_once() -> None:
    outcome = TrialOutcome(SearchTrial("x", 0), 0.9, 1.0, 1.0)
    with pytest.raises(PolyrhythmError, match="has an outcome already"):
        tell(tell(SearchState(SearchPlan()), outcome), outcome)


def test_whole_numbers_that_fall_together_are_tried_once() -> None:
    knob = Knob("ssp:{}", safe=0, fast=4, whole=True)
    plan = SearchPlan(knob, settings=6, error_rate=0.5, early=0.0)
    state = SearchState(plan)
    while trials := next_trials(state):
        bound = int(trials[0].spec.removeprefix("ssp:"))
        state = tell(state, TrialOutcome(trials[0], 0.9 if bound <= 0 else 0.8, 1.0, 1.0))
    progress = progress_of(state)
    assert [visited.spec for visited in progress.visited] == ["ssp:2", "ssp:1", "ssp:0", "ssp:1", "ssp:1", "ssp:1"]
    assert knob.spec(progress.best) == "ssp:0"
    assert len(state.outcomes) == 3 * 3


def test_what_was_known_before_costs_nothing() -> None:
    state = searched(SearchPlan(), knee(0.3))
    known = frozenset(outcome.trial for outcome in state.outcomes if outcome.trial.spec == "switch:bsp@1,asp")
    assert cost_of(state).spent_s - cost_of(state, known).spent_s == pytest.approx(300)
    assert cost_of(state).algorithm_1_s - cost_of(state, known).algorithm_1_s == pytest.approx(300)


def test_the_baseline_may_have_runs_of_its_own() -> None:
    plan = SearchPlan(settings=1, runs=2, error_rate=0.5, baseline_runs=5, early=0.0)
    state = searched(plan, knee(0.3))
    assert len(state.of("switch:bsp@1,asp")) == 5
    assert len(state.of("switch:bsp@0.5,asp")) == 2
    assert cost_of(state).algorithm_1_s == pytest.approx(5 * 100 + 2 * 70)
