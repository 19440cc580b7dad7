"""What shared beginnings and early stopping save of Algorithm 1, and whether the answer stays the same.

Each seed is a search with runs of its own, M = 5 and R = 3, for a job on the digits whose accuracy collapses on 16
workers if it switches too early. Costs are simulated training time, in that of Algorithm 1, which trains every run as a
whole. A new job makes its baseline runs; a recurring one knows their outcomes, but trains the common beginning again.
The answer of the default test is listed as well: it asks for more certainty than a comparison of means.

Exits with 1 if a bar is missed. Other seeds than 0 to 19: ``search.py 5 10`` makes 5 to 9.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from polyrhythm.search.plan import Knob, SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.simulated import SimulatedTrials
from polyrhythm.search.state import SearchState, cost_of, next_trials, progress_of, tell
from polyrhythm.sim import Compute, Device, Network, Scenario
from polyrhythm.training.config import TrainingConfig

SEEDS, NEW_BAR, RECURRING_BAR = 20, 0.65, 0.45
ALGORITHM_1 = SearchPlan(two_sided=True, error_rate=0.5, early=0.0)
OURS = SearchPlan(two_sided=True, error_rate=0.5)
DEFAULT = SearchPlan()

JOB = Scenario(
    name="collapse",
    devices=[Device(count=16, compute_s=0.1, bandwidth_gbps=1.0)],
    compute=Compute(distribution="normal", deviation=0.03),
    network=Network(message_bytes=2e6, server_gbps=1.0),
    training=TrainingConfig(
        task="digits",
        epochs=8,
        batch_size=8,
        learning_rate=0.01,
        momentum=0.9,
        schedule="step",
        decay_at=(0.5, 0.75),
    ),
)


class Shifted:
    """Trials whose runs are other seeds; a fresh one shares nothing with those before."""

    def __init__(self, first: int) -> None:
        self.trials, self.first = SimulatedTrials(JOB, Knob()), first

    def __call__(self, trial: SearchTrial) -> TrialOutcome:
        return replace(self.trials(SearchTrial(trial.spec, self.first + trial.run)), trial=trial)


def searched(state: SearchState, run: Callable[[SearchTrial], TrialOutcome]) -> SearchState:
    """Search to the end."""
    while trials := next_trials(state):
        state = tell(state, run(trials[0]))
    return state


class Row(NamedTuple):
    """One seed: answers as shares under BSP, costs as shares of Algorithm 1's."""

    published: float
    ours: float
    new: float
    recurring: float
    default: float


def compared(first: int) -> Row:
    """One seed. All outcomes are those of whole trainings, so Algorithm 1 needs none of its own for what is known."""
    trials = Shifted(first)
    ours = searched(SearchState(OURS), trials)
    published = searched(replace(ours, plan=ALGORITHM_1), trials)
    default = searched(replace(published, plan=DEFAULT), trials)
    baseline = tuple(o for o in ours.outcomes if o.trial.spec == OURS.knob.target_spec)
    again = searched(SearchState(OURS, baseline), Shifted(first))
    whole = sum(outcome.time_s for outcome in published.outcomes if visited_by(published, outcome))
    base = sum(outcome.time_s for outcome in baseline)
    known = frozenset(outcome.trial for outcome in baseline)
    return Row(
        progress_of(published).best,
        progress_of(ours).best,
        cost_of(ours).spent_s / whole,
        cost_of(again, known).spent_s / (whole - base),
        progress_of(default).best,
    )


def visited_by(state: SearchState, outcome: TrialOutcome) -> bool:
    """Whether Algorithm 1 makes this trial."""
    visited = {visited.spec for visited in progress_of(state).visited}
    return outcome.trial.spec in {state.plan.knob.target_spec, *visited}


def main(first: int, end: int) -> int:
    """Print a line for each seed, and the means; 1 if a bar is missed."""
    print("seed  Algorithm 1     ours  default test    new  recurring")
    rows = []
    seeds = end - first
    for seed in range(first, end):
        row = compared(100 * seed)
        answers = f"{row.published:11g}  {row.ours:7g}  {row.default:12g}"
        print(f"{seed:4d}  {answers}  {row.new:5.3f}  {row.recurring:9.3f}", flush=True)
        rows.append(row)
    new, recurring = mean(row.new for row in rows), mean(row.recurring for row in rows)
    same = sum(row.ours == row.published for row in rows)
    defaults = sum(row.default == row.published for row in rows)
    print(f"same answer: {same} of {seeds}, bar {seeds}; of the default test: {defaults}")
    print(f"cost of a new job {new:.3f}, bar {NEW_BAR}; of a recurring one {recurring:.3f}, bar {RECURRING_BAR}")
    return int(same < seeds or new > NEW_BAR or recurring > RECURRING_BAR)


if __name__ == "__main__":
    sys.exit(main(*(map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (0, SEEDS))))
