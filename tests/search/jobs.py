"""Jobs whose accuracies and times are given by formulas, for the tests of the search."""

import random
from collections.abc import Callable

from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.state import SearchState, next_trials, tell

ASP_TIME = 0.4
"""Time of a run under ASP alone, in runs under BSP alone."""


def share_of(trial: SearchTrial) -> float:
    """The switch point that a trial names."""
    return float(trial.spec.partition("@")[2].partition(",")[0])


def knee(at: float, noise: float = 0.004, seed: int = 0) -> Callable[[SearchTrial], TrialOutcome]:
    """A job that keeps 0.90 if it switches at `at` or later, and has 0.85 before; noise depends on the trial alone."""

    def run(trial: SearchTrial) -> TrialOutcome:
        share = share_of(trial)
        accuracy = (0.90 if share >= at else 0.85) + noise * random.Random(f"{seed} {trial}").gauss(0, 1)
        time_s = 100 * (ASP_TIME + (1 - ASP_TIME) * share)
        return TrialOutcome(trial, accuracy, time_s, time_s)

    return run


def searched(plan: SearchPlan, job: Callable[[SearchTrial], TrialOutcome], at_most: int = 1) -> SearchState:
    """The whole search."""
    state = SearchState(plan)
    while trials := next_trials(state, at_most):
        for trial in trials:
            state = tell(state, job(trial))
    return state
