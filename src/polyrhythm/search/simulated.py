"""Trials in the simulator. Runs of one seed share their beginnings: each goes on where it parts from the baseline."""

from dataclasses import dataclass, field

from polyrhythm.policies import parse_policy
from polyrhythm.search.plan import Knob, SearchTrial, TrialOutcome
from polyrhythm.sim import Scenario, simulate
from polyrhythm.sim.prefix import Prefix
from polyrhythm.telemetry import RunResult


@dataclass
class SimulatedTrials:
    """Runs one trial at a time.

    Args:
        scenario: cluster and job; a trial's run is the seed.
        knob: of the search; the runs at its safe end are those that others branch off from.
        moments: of a run that are kept, evenly spread.
        reuse: whether beginnings are shared at all.
    """

    scenario: Scenario
    knob: Knob
    moments: int = 32
    reuse: bool = True
    prefixes: dict[int, Prefix] = field(default_factory=dict)

    def __call__(self, trial: SearchTrial) -> TrialOutcome:
        """Train, or go on from a beginning that is there already."""
        if not self.reuse:
            result = simulate(self.scenario, parse_policy(trial.spec), seed=trial.run)
            return outcome_of(trial, result, result.duration_s)
        return self._branched(trial, self._prefix(trial.run))

    def _prefix(self, run: int) -> Prefix:
        if run not in self.prefixes:
            self.prefixes[run] = Prefix(self.scenario, parse_policy(self.knob.spec(1.0)), run)
        return self.prefixes[run]

    def _branched(self, trial: SearchTrial, prefix: Prefix) -> TrialOutcome:
        """The trial's cost is what it adds to the time that the common beginning has taken."""
        before_s, policy = prefix.spent_s, parse_policy(trial.spec)
        shares = [snapshot / self.moments for snapshot in range(1, self.moments)]
        if policy == prefix.policy:
            for share in shares:
                prefix.advance(share)
            return outcome_of(trial, prefix.finish(), prefix.spent_s - before_s)
        prefix.follow(policy, shares)
        result, reused_s = prefix.branch(policy)
        return outcome_of(trial, result, prefix.spent_s - before_s + result.duration_s - reused_s)


def outcome_of(trial: SearchTrial, result: RunResult, spent_s: float) -> TrialOutcome:
    """What the search has to know of a result; without a model every accuracy is 0."""
    diverged = result.status == "diverged"
    accuracy = 0.0 if diverged or result.final_accuracy is None else result.final_accuracy
    return TrialOutcome(trial, accuracy, result.duration_s, spent_s, diverged)
