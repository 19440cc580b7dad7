"""What a search for the switch point costs, and how often it finds the right one, from a log of finished runs.

The search is the one behind the Sync-Switch paper's Tables II and IV to VI (Li et al. 2021, Section VI-C1 and Appendix
C): candidates are tried from the largest BSP share down, r runs each, and the first that fails ends it. With the target
A, the mean accuracy of n BSP runs, a candidate passes if the mean of its r runs is at least ``A - beta``. A job that
recurs knows A from all runs of the log.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyrhythm.errors import UsageError
from polyrhythm.search.draws import ROUNDING, DrawnNumbers, Means, means_of
from polyrhythm.search.log import Pool

HALVINGS = (50.0, 25.0, 12.5, 6.25, 3.125)
"""The paper's candidates, percent of the workload under BSP."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a search is carried out: `bsp_runs` set the target (none for a job that recurs), `runs` try a candidate."""

    recurring: bool
    bsp_runs: int
    runs: int

    def __str__(self) -> str:
        return f"({'yes' if self.recurring else 'no'}, {self.bsp_runs}, {self.runs})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A BSP share that the search tries.

    Args:
        percent: nominal share; `logged_percent` is the share in the log whose runs stand for it, if there is one.
        pool: its runs; a candidate without any fails and costs nothing.
        passes: whether it passes with all runs of the log.
    """

    percent: float
    logged_percent: float | None
    pool: Pool
    passes: bool


@dataclass(frozen=True, slots=True)
class CostFigures:
    """A setting's row of the paper's tables, and how the answers go wrong.

    Args:
        setting: the search.
        replacement: whether runs were drawn with replacement.
        cost: expected time of all trainings of the search, in mean BSP trainings.
        amortised: recurrences after which the time saved pays for the search; infinite if the answer saves none.
        effective: trainings that reach the target, in multiples of the BSP trainings that their time would have paid.
        success: probability of the answer that all runs together give.
        too_early: probability of a smaller BSP share; `too_late`: of a larger one.
        time_regret: expected time of a later training beyond that of the right answer, in BSP trainings.
        accuracy_regret: expected mean accuracy that is lost below that of the right answer, when it was too early.
        std_error: of `success`, where draws were sampled; 0 where all were enumerated.
        whole_pools: every draw takes all runs there are, so that success is certain by construction.
    """

    setting: Setting
    replacement: bool
    cost: float
    amortised: float
    effective: float
    success: float
    too_early: float
    too_late: float
    time_regret: float
    accuracy_regret: float
    std_error: float
    whole_pools: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One setup of a log, with its answer from all runs.

    Args:
        name: of the setup.
        bsp: its runs under BSP alone.
        candidates: from the largest share down.
        beta: margin, as a share of 1.
    """

    name: str
    bsp: Pool
    candidates: tuple[Candidate, ...]
    beta: float

    @property
    def valid(self) -> int:
        """Candidates that pass before the first that fails."""
        return next((i for i, candidate in enumerate(self.candidates) if not candidate.passes), len(self.candidates))

    @property
    def answer(self) -> float:
        """BSP share in percent that all runs give; 100 if no candidate passes."""
        return self.candidates[self.valid - 1].percent if self.valid else 100.0


def case_of(name: str, pools: dict[float, Pool], percents: Sequence[float] | None, beta: float) -> Case:
    """Prepare a setup.

    Args:
        name: of the setup.
        pools: its runs by BSP share in percent.
        percents: candidates, each a share in the log; none: the paper's halvings, see `stand_in`.
        beta: margin.
    """
    bsp, shares = pools.get(100.0, Pool()), ", ".join(f"{share:g}" for share in sorted(pools))
    if not bsp:
        raise UsageError(f"setup {name!r} has no runs with bsp_percent = 100, which set the target, only {shares}")
    if not bsp.time_s:
        raise UsageError(f"setup {name!r} has BSP runs with train_time_s = 0, the unit of all costs; log their time")
    chosen = [(p, stand_in(p, pools)) for p in HALVINGS] if percents is None else [(p, p) for p in percents]
    candidates = tuple(candidate_of(p, logged, pools, bsp.accuracy - beta) for p, logged in chosen)
    if not any(candidate.pool for candidate in candidates):
        raise UsageError(f"setup {name!r} has no runs of a candidate, only at {shares} %; name some: --candidates")
    return Case(name, bsp, candidates, beta)


def candidate_of(percent: float, logged: float | None, pools: dict[float, Pool], mark: float) -> Candidate:
    pool = pools.get(logged, Pool()) if logged is not None else Pool()
    return Candidate(percent, logged if pool else None, pool, bool(pool) and pool.accuracy >= mark - ROUNDING)


def stand_in(percent: float, pools: dict[float, Pool]) -> float | None:
    """The share in the log that a halving stands for: logs write 10 or 12 for 12.5 %.

    Of the shares in (percent / 2, percent] the one with most runs; of several, the nearest.

    >>> stand_in(12.5, {10.0: Pool((0.9,), (1.0,)), 6.25: Pool((0.9,) * 2, (1.0,) * 2)})
    10.0
    """
    near = [share for share in pools if percent / 2 < share <= percent]
    return max(near, key=lambda share: (len(pools[share]), share), default=None)


def settings(most: int) -> list[Setting]:
    """The paper's settings for up to so many runs: as many BSP runs as candidate runs, one BSP run, and recurring.

    >>> [str(setting) for setting in settings(2)]
    ['(no, 2, 2)', '(no, 1, 1)', '(no, 1, 2)', '(yes, 0, 2)', '(yes, 0, 1)']
    """
    runs = range(most, 0, -1)
    alike, one = [Setting(False, r, r) for r in runs], [Setting(False, 1, r) for r in runs if r > 1]
    return [*alike, *one, *(Setting(True, 0, r) for r in runs)]


def figures_of(case: Case, setting: Setting, replacement: bool, draws: int = 100_000, seed: int = 0) -> CostFigures:
    """Cost and outcome of one setting.

    With T the mean training time, p_i the i-th candidate and q_i(A) the probability that it passes under target A, the
    search reaches p_i with probability ``q_1(A) ... q_(i-1)(A)``, because runs of different shares are drawn apart.
    Costs are linear in these, so the figures are exact wherever the draws of each share can be listed.

    Args:
        case: the setup.
        setting: numbers of runs.
        replacement: draw with replacement.
        draws: samples of a share whose draws are too many to list.
        seed: of these samples.
    """
    rng = np.random.default_rng(seed)
    targets = target_means(case, setting, replacement, draws, rng)
    passed = [passing(case, c, targets, setting.runs, replacement, draws, rng) for c in case.candidates]
    reached, found = walk([chance for chance, _ in passed], len(targets.values))
    shares = relative_times(case)
    times = [targets.weights @ reach * share for reach, share in zip(reached, shares[1:], strict=True)]
    cost = setting.bsp_runs + setting.runs * math.fsum(times)
    outcome = [float(targets.weights @ chance) for chance in found]
    right, valid = outcome[case.valid], case.valid
    exact = targets.exact and all(exact for _, exact in passed)
    saving = 1 - shares[valid]
    return CostFigures(
        setting,
        replacement,
        cost,
        cost / saving if valid and saving > 0 else math.inf,
        (setting.bsp_runs + setting.runs * valid) / cost if cost else math.nan,
        right,
        math.fsum(outcome[valid + 1 :]),
        math.fsum(outcome[:valid]),
        math.fsum(p * max(0.0, share - shares[valid]) for p, share in zip(outcome, shares, strict=True)),
        accuracy_regret(case, outcome),
        0.0 if exact else math.sqrt(max(0.0, right * (1 - right)) / draws),
        takes_all(case, setting, replacement),
    )


def target_means(case: Case, setting: Setting, replacement: bool, draws: int, rng: np.random.Generator) -> Means:
    if setting.bsp_runs == 0:
        return Means(np.array([case.bsp.accuracy]), np.ones(1), True)
    return means_of(case.bsp.accuracies, setting.bsp_runs, replacement, draws, rng)


def passing(
    case: Case, candidate: Candidate, targets: Means, runs: int, replacement: bool, draws: int, rng: np.random.Generator
) -> tuple[DrawnNumbers, bool]:
    """Probability that a candidate passes under each target; whether it is exact."""
    if not candidate.pool:
        return np.zeros(len(targets.values)), True
    means = means_of(candidate.pool.accuracies, runs, replacement, draws, rng)
    return means.at_least(targets.values - case.beta), means.exact


def walk(passed: Sequence[DrawnNumbers], targets: int) -> tuple[list[DrawnNumbers], list[DrawnNumbers]]:
    """Probabilities of reaching each candidate, and of ending with none, the first, the second ... as the answer."""
    reach, reached, found = np.ones(targets), [], []
    for chance in passed:
        reached.append(reach)
        found.append(reach * (1 - chance))
        reach = reach * chance
    return reached, [*found, reach]


def relative_times(case: Case) -> list[float]:
    """Mean training time of each possible answer in BSP trainings, that of BSP first; 0 where nothing was logged."""
    return [1.0, *(c.pool.time_s / case.bsp.time_s if c.pool else 0.0 for c in case.candidates)]


def accuracy_regret(case: Case, outcome: Sequence[float]) -> float:
    accuracies = [case.bsp.accuracy, *(c.pool.accuracy if c.pool else 0.0 for c in case.candidates)]
    right = accuracies[case.valid]
    later = zip(outcome[case.valid + 1 :], accuracies[case.valid + 1 :], strict=True)
    return math.fsum(chance * max(0.0, right - accuracy) for chance, accuracy in later)


def takes_all(case: Case, setting: Setting, replacement: bool) -> bool:
    candidates = [c.pool for c in case.candidates if c.pool]
    whole = all(setting.runs >= len(pool) for pool in candidates)
    return not replacement and whole and (setting.recurring or setting.bsp_runs >= len(case.bsp))
