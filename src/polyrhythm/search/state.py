"""The search as a pure value: what to try next, what an outcome changes, and the answer.

``next_trials`` asks, ``tell`` answers; the caller owns the loop, the processes and the store. Everything follows from
the plan and the outcomes, in whatever order these come in, so a search that was killed goes on from its outcomes alone.
"""

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from polyrhythm.errors import DivergedError, UsageError
from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.verdicts import AccuracySample, Noise, Verdict, verdict_of


@dataclass(frozen=True, slots=True)
class SearchState:
    plan: SearchPlan
    outcomes: tuple[TrialOutcome, ...] = ()

    def of(self, spec: str) -> list[TrialOutcome]:
        """Outcomes of a policy's runs 0, 1, ... up to the first that is missing."""
        found = {outcome.trial.run: outcome for outcome in self.outcomes if outcome.trial.spec == spec}
        return [found[run] for run in range(next(run for run in range(len(found) + 1) if run not in found))]


@dataclass(frozen=True, slots=True)
class Visited:
    """A candidate that was tried, and its verdict; `position` is the knob's."""

    position: float
    spec: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is.

    Args:
        target: accuracy to keep; None while baseline runs are missing.
        visited: decided candidates, in order.
        current: position of the candidate that needs more runs; None if there is none.
        best: position of the fastest setting so far that keeps the accuracy; 1 is the baseline.
    """

    target: AccuracySample | None
    visited: tuple[Visited, ...] = ()
    current: float | None = None
    best: float = 1.0

    @property
    def done(self) -> bool:
        return self.target is not None and self.current is None


def tell(state: SearchState, outcome: TrialOutcome) -> SearchState:
    """The state that knows this outcome too."""
    if any(known.trial == outcome.trial for known in state.outcomes):
        raise UsageError(f"{outcome.trial} has an outcome already; tell each once")
    return replace(state, outcomes=(*state.outcomes, outcome))


def next_trials(state: SearchState, at_most: int = 1) -> tuple[SearchTrial, ...]:
    """Trials that can run now, side by side; none when the search is done.

    Args:
        state: of the search.
        at_most: how many are wanted. With 1 no run is made that an earlier one may yet make superfluous.
    """
    plan, progress = state.plan, progress_of(state)
    if progress.done:
        return ()
    position = 1.0 if progress.current is None else progress.current
    spec = plan.knob.target_spec if progress.target is None else plan.knob.spec(position)
    known = {outcome.trial for outcome in state.outcomes}
    trials = [trial for run in range(plan.runs_of(spec)) if (trial := SearchTrial(spec, run)) not in known]
    return tuple(trials[: max(1, at_most)])


def progress_of(state: SearchState) -> SearchProgress:
    """Walk through the candidates as far as the outcomes reach; what passes only for now is not the answer yet."""
    target = target_of(state)
    if target is None:
        return SearchProgress(None)
    confirmed: set[float] = set()
    while True:
        progress = walked(state, target, confirmed)
        answers = [visited for visited in progress.visited if visited.position == progress.best]
        if not progress.done or all(answer.verdict.certain for answer in answers):
            return progress
        confirmed.add(progress.best)


def walked(state: SearchState, target: AccuracySample, confirmed: Container[float]) -> SearchProgress:
    """One walk, in which what is to be `confirmed` makes all its runs."""
    noise = Noise().plus(target) if target.size > 1 else Noise()
    visited: list[Visited] = []

    def judge(position: float) -> Verdict | None:
        nonlocal noise
        spec = state.plan.knob.spec(position)
        if spec == state.plan.knob.target_spec:  # a whole number that was rounded to the safe end
            verdict: Verdict | None = Verdict(True, 0)
        else:
            verdict = verdict_of(state.plan, target, noise, state.of(spec), position in confirmed)
        if verdict is not None:
            noise = noise.plus(decisive(state, spec, verdict)) if verdict.runs else noise
            visited.append(Visited(position, spec, verdict))
        return verdict

    best, current = walk(state.plan, judge)
    return SearchProgress(target, tuple(visited), current, best)


def walk(plan: SearchPlan, judge: Callable[[float], Verdict | None]) -> tuple[float, float | None]:
    """Best position so far, and the one that is not decided yet.

    Algorithm 1 halves [lower, upper] M times; its variant ends at the first failure.
    """
    upper, lower = 1.0, 0.0
    for _ in range(plan.settings):
        position = (upper + lower) / 2
        verdict = judge(position)
        if verdict is None:
            return upper, position
        if verdict.passed:
            upper = position
        elif plan.walk == "first-failure":
            break
        else:
            lower = position
    return upper, None


def decisive(state: SearchState, spec: str, verdict: Verdict) -> AccuracySample:
    """The runs that led to a verdict; one that diverged says nothing of the noise."""
    values = [outcome.accuracy for outcome in state.of(spec)[: verdict.runs] if not outcome.diverged]
    return AccuracySample.of(values or [0.0])


def target_of(state: SearchState) -> AccuracySample | None:
    """The accuracy to keep, if it is known.

    Raises:
        DivergedError: if a baseline run diverged, as there is no accuracy to keep then.
    """
    plan = state.plan
    if plan.target is not None:
        return AccuracySample(plan.target, 0.0, 1)
    count = plan.runs_of(plan.knob.target_spec)
    runs = state.of(plan.knob.target_spec)[:count]
    for outcome in runs:
        if outcome.diverged:
            raise DivergedError(
                f"baseline {plan.knob.target_spec} diverged in run {outcome.trial.run}; lower its learning rate first"
            )
    return AccuracySample.of([outcome.accuracy for outcome in runs]) if len(runs) == count else None


def concerned(state: SearchState) -> SearchState:
    """With the outcomes of the baseline and of candidates that are tried; a store may know others of the same job."""
    progress = progress_of(state)
    specs = {state.plan.knob.target_spec, *(visited.spec for visited in progress.visited)}
    if progress.current is not None:
        specs.add(state.plan.knob.spec(progress.current))
    return replace(state, outcomes=tuple(outcome for outcome in state.outcomes if outcome.trial.spec in specs))


@dataclass(frozen=True, slots=True)
class Cost:
    """Training time of a search, seconds.

    Args:
        spent_s: of all its trials.
        algorithm_1_s: of all runs of the baseline and of each candidate that was tried, each trained as a whole; for
            runs that were not made, the mean of those that were.
    """

    spent_s: float
    algorithm_1_s: float

    @property
    def share(self) -> float:
        """What was spent of what Algorithm 1 would have spent."""
        return self.spent_s / self.algorithm_1_s if self.algorithm_1_s else math.nan


def cost_of(state: SearchState, known: frozenset[SearchTrial] = frozenset()) -> Cost:
    """What the search has cost so far.

    Args:
        state: of the search.
        known: trials whose outcomes it was given at its start, which cost nothing.
    """
    plan, visited = state.plan, {each.spec for each in progress_of(state).visited}
    specs = visited if plan.target is not None else {plan.knob.target_spec, *visited}
    whole = 0.0
    for spec in sorted(specs):
        times = [outcome.time_s for outcome in state.of(spec)]
        if times and SearchTrial(spec, 0) not in known:
            whole += plan.runs_of(spec) * math.fsum(times) / len(times)
    return Cost(math.fsum(o.spent_s for o in state.outcomes if o.trial not in known), whole)
