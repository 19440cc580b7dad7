"""The loop around the pure search: it runs trials, keeps each outcome at once, and goes on where it was."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.state import (
    Cost,
    SearchProgress,
    SearchState,
    concerned,
    cost_of,
    next_trials,
    progress_of,
    tell,
)
from polyrhythm.search.store import TrialStore


class Runner(Protocol):
    @property
    def slots(self) -> int:
        """How many can run side by side."""

    def run(self, trials: Sequence[SearchTrial]) -> Iterator[TrialOutcome]:
        """Their outcomes, in the order in which they finish."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A search, done or as far as it has come; `known` are the trials whose outcomes it found in the store."""

    state: SearchState
    known: frozenset[SearchTrial]

    @property
    def progress(self) -> SearchProgress:
        return progress_of(self.state)

    @property
    def spec(self) -> str:
        return self.state.plan.knob.spec(self.progress.best)

    @property
    def cost(self) -> Cost:
        return cost_of(self.state)


def search(
    plan: SearchPlan,
    runner: Runner,
    store: TrialStore,
    job: str,
    on_outcome: Callable[[TrialOutcome], None] | None = None,
    on_state: Callable[[Finished, Sequence[SearchTrial]], None] | None = None,
) -> Finished:
    """Search, or go on with a search, or answer from the store at once.

    Args:
        plan: what is searched.
        runner: carries out the trials.
        store: keeps the outcomes.
        job: fingerprint under which they are kept; equal jobs share them, also under another plan.
        on_outcome: told of each as soon as it is kept.
        on_state: told how far the search is, and of the trials that run now, before each and after each.
    """
    store.refuse_read_only()
    state = SearchState(plan, store.outcomes(job))
    known = frozenset(outcome.trial for outcome in state.outcomes)
    while trials := next_trials(state, runner.slots):
        running = list(trials)
        report(on_state, state, known, running)
        for outcome in runner.run(trials):
            store.add(job, outcome)
            state = tell(state, outcome)
            if on_outcome is not None:
                on_outcome(outcome)
            running = [trial for trial in running if trial != outcome.trial]
            report(on_state, state, known, running)
    finished = so_far(state, known)
    store.conclude(job, finished.spec, plan)
    return finished


def so_far(state: SearchState, known: frozenset[SearchTrial]) -> Finished:
    """The search with what concerns it, whether or not it is done."""
    state = concerned(state)
    return Finished(state, known.intersection(outcome.trial for outcome in state.outcomes))


def report(
    to: Callable[[Finished, Sequence[SearchTrial]], None] | None,
    state: SearchState,
    known: frozenset[SearchTrial],
    running: Sequence[SearchTrial],
) -> None:
    if to is not None:
        to(so_far(state, known), running)
