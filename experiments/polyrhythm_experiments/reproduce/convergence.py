"""When a run has converged: by patience, on its evaluations."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeAlias

from polyrhythm.telemetry.result import EvalPoint, RunResult

PATIENCE, GAIN = 10, 0.001
"""A run has converged when the mean of so many evaluations is less than this above the mean of as many before."""

Score: TypeAlias = Callable[[EvalPoint], float]
"""What is better the higher it is."""


def accuracy(point: EvalPoint) -> float:
    return point.accuracy


def log_likelihood(point: EvalPoint) -> float:
    """Of a token in the mean; a gain of 0.001 is 0.1 % less perplexity."""
    return -point.loss


def converged(curve: Sequence[EvalPoint], score: Score = accuracy) -> int | None:
    """Evaluations after which a run has converged; None if it never does.

    >>> points = [EvalPoint(float(k), k, k, min(0.5, 0.1 * k), 1.0) for k in range(40)]
    >>> converged(points)
    25
    """
    for count in range(2 * PATIENCE, len(curve) + 1):
        before, after = (curve[count - k * PATIENCE : count - (k - 1) * PATIENCE] for k in (2, 1))
        if mean_score(after, score) - mean_score(before, score) < GAIN:
            return count
    return None


def first_at(run: RunResult, level: float, score: Score = accuracy) -> tuple[float, float] | None:
    """Samples and seconds at which the mean of the last evaluations first is at least `level`; None if it never is."""
    for count in range(PATIENCE, len(run.curve) + 1):
        if mean_score(run.curve[count - PATIENCE : count], score) >= level:
            return float(run.curve[count - 1].samples), run.curve[count - 1].time_s
    return None


def mean_score(points: Sequence[EvalPoint], score: Score = accuracy) -> float:
    return fmean(map(score, points))


def last_score(runs: Sequence[RunResult], score: Score = accuracy) -> list[float | None]:
    """The mean of the last evaluations before each seed has converged, or before its end if it does not."""
    return [last_of(run, score) for run in runs]


def last_of(run: RunResult, score: Score) -> float | None:
    """The same of one seed; None if it diverged."""
    if run.status == "diverged":
        return None
    return mean_score(run.curve[: converged(run.curve, score)][-PATIENCE:], score)


def last_perplexity(runs: Sequence[RunResult]) -> list[float | None]:
    """As `last_score`, of perplexity."""
    return [None if found is None else math.exp(-found) for found in last_score(runs, log_likelihood)]


def perplexity(points: Sequence[EvalPoint]) -> float:
    """exp of the mean test cross-entropy of a token.

    >>> perplexity([EvalPoint(0.0, 0, 0, 0.1, 1.0), EvalPoint(1.0, 1, 1, 0.1, 3.0)]) == math.exp(2.0)
    True
    """
    return math.exp(-mean_score(points, log_likelihood))


def converged_at(run: RunResult, score: Score = accuracy) -> EvalPoint | None:
    """The evaluation at which a run has converged; None if it never does."""
    count = converged(run.curve, score)
    return None if count is None or run.status == "diverged" else run.curve[count - 1]


def converged_s(run: RunResult, score: Score = accuracy) -> float | None:
    point = converged_at(run, score)
    return None if point is None else point.time_s


def converged_samples(run: RunResult, score: Score = accuracy) -> float | None:
    point = converged_at(run, score)
    return None if point is None else float(point.samples)
