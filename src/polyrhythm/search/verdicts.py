"""Whether a candidate keeps the accuracy: the test on all its runs, and when fewer are enough.

**The test.** With the mean x of R runs, the target A and the margin beta, the hypothesis is that the candidate is worse
by beta or more. It passes if that is rejected at level e (`error_rate`): ``x - A - t * s >= -beta``. Here s is the
standard error of x - A (Welch), t the 1 - e quantile of Student's t with Welch's degrees of freedom; a target that is
given has no error of its own. With e = 0.5 t is 0: Algorithm 1's comparison of means. Two-sided, ``x - A + t * s <=
beta`` must hold as well.

So e bounds the probability of accepting one bad candidate. If accuracy falls along the knob, a search that ends at the
first failure tests a second bad candidate only if it has accepted one, so e bounds the probability of a bad answer
too; one that bisects may test up to M bad candidates, which bounds it by M * e.

**Early.** After k < R runs the mean of all R is predicted: the mean so far plus noise of Student's t with the pooled
spread of all runs at hand. If that leaves it a chance below `early` to pass, the candidate is hopeless and its other
runs are not made. (Stochastic curtailment: Lan, Simon and Halperin 1982, with the predictive distribution of normal
noise of one variance.) If after two runs or more the chance is above ``1 - early``, the candidate passes for now, and
the walk goes on below it. It is never the answer like that: past the knee the spread grows, often by single runs that
collapse, about which a lucky few say nothing. So what the walk ends with makes all its runs, and if it fails then the
walk is made again with that known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from polyrhythm.search.plan import SearchPlan, TrialOutcome

UNKNOWN = 2.0
"""More than any probability."""


@dataclass(frozen=True, slots=True)
class AccuracySample:
    """Mean, sum of squared deviations and number of some accuracies."""

    mean: float
    squares: float
    size: int

    @staticmethod
    def of(values: Sequence[float]) -> "AccuracySample":
        """Of at least one value."""
        mean = math.fsum(values) / len(values)
        return AccuracySample(mean, math.fsum((value - mean) ** 2 for value in values), len(values))

    @property
    def error_sq(self) -> float:
        """Squared standard error of the mean; 0 of what is known."""
        return self.squares / (self.size - 1) / self.size if self.size > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Spread of single runs, pooled over groups."""

    squares: float = 0.0
    freedom: int = 0

    def plus(self, sample: AccuracySample) -> "Noise":
        return Noise(self.squares + sample.squares, self.freedom + sample.size - 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate passed, after how many runs; `certain` is false where it only passes for now."""

    passed: bool
    runs: int
    certain: bool = True


def verdict_of(
    plan: SearchPlan, target: AccuracySample, noise: Noise, outcomes: Sequence[TrialOutcome], confirm: bool = False
) -> Verdict | None:
    """The verdict on a candidate, or None while more runs are needed.

    Args:
        plan: terms.
        target: accuracy of the baseline; of size 1 if it was given.
        noise: pooled spread without this candidate.
        outcomes: of the candidate's runs 0, 1, ... as far as they are there. The first few that are enough decide, so
            it does not matter how many there are or in which order they came.
        confirm: it takes all runs to pass.
    """
    for count, outcome in enumerate(outcomes[: plan.runs], start=1):
        if outcome.diverged and plan.early:
            return Verdict(False, count)
        sample = AccuracySample.of([o.accuracy for o in outcomes[:count]])
        if count == plan.runs:
            sound = not any(o.diverged for o in outcomes[:count])
            return Verdict(sound and passes(plan, target, sample), count)
        chance = chance_to_pass(plan, target, noise, sample)
        if chance < plan.early:
            return Verdict(False, count)
        if count > 1 and not confirm and UNKNOWN > chance > 1 - plan.early:
            return Verdict(True, count, certain=False)
    return None


def passes(plan: SearchPlan, target: AccuracySample, sample: AccuracySample) -> bool:
    return within(plan, sample.mean - target.mean, margin(plan, target, sample))


def within(plan: SearchPlan, difference: float, less: float) -> bool:
    """Whether a difference of means stays inside the margin when it is known to +- `less`; rounding does not count."""
    beta = plan.beta - less + 1e-12
    return difference >= -beta and (not plan.two_sided or difference <= beta)


def margin(plan: SearchPlan, target: AccuracySample, sample: AccuracySample) -> float:
    """t times the standard error of the difference of means."""
    error_sq = target.error_sq + sample.error_sq
    if plan.error_rate == 0.5 or error_sq == 0:
        return 0.0
    parts = [(each.error_sq, each.size - 1) for each in (target, sample) if each.error_sq > 0]
    freedom = error_sq**2 / math.fsum(part**2 / count for part, count in parts)
    return float(stdtrit(freedom, 1 - plan.error_rate)) * math.sqrt(error_sq)


def chance_to_pass(plan: SearchPlan, target: AccuracySample, noise: Noise, sample: AccuracySample) -> float:
    """Probability that the candidate passes after all its runs; `UNKNOWN` where the spread is."""
    pooled = noise.plus(sample)
    if not pooled.freedom or pooled.squares == 0:
        return UNKNOWN  # runs that all agree may share their seed, which says nothing of the noise of other policies
    deviation = math.sqrt(pooled.squares / pooled.freedom)
    left = plan.runs - sample.size
    scale = deviation * left / plan.runs * math.sqrt(1 / sample.size + 1 / left)
    half = plan.beta - expected_margin(plan, target, deviation, pooled.freedom)
    difference = sample.mean - target.mean
    chance = 1 - float(stdtr(pooled.freedom, (-half - difference) / scale))
    if plan.two_sided:
        chance -= 1 - float(stdtr(pooled.freedom, (half - difference) / scale))
    return max(0.0, chance)


def expected_margin(plan: SearchPlan, target: AccuracySample, deviation: float, freedom: int) -> float:
    if plan.error_rate == 0.5:
        return 0.0
    error = deviation * math.sqrt(1 / plan.runs + (1 / target.size if target.size > 1 else 0.0))
    return float(stdtrit(max(1, min(freedom, plan.runs + target.size - 2)), 1 - plan.error_rate)) * error
