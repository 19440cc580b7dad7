"""The rule that says when a run has converged, on accuracy and on cross-entropy."""

import math

import pytest

from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce.convergence import (
    GAIN,
    PATIENCE,
    converged,
    converged_s,
    converged_samples,
    last_perplexity,
    last_score,
    log_likelihood,
)


def curve(accuracies: list[float]) -> list[EvalPoint]:
    return [EvalPoint(float(k), 10 * k, k, accuracy, 2.0) for k, accuracy in enumerate(accuracies)]


def of(points: list[EvalPoint]) -> RunResult:
    return RunResult(scenario="s", policy="p", seed=0, workers=1, batch_size=1, curve=points)


RISING = [k * 2 * GAIN / PATIENCE for k in range(30)]


def test_a_run_has_converged_when_its_mean_stands_still() -> None:
    assert converged(curve(RISING)) is None
    count = converged(curve([*RISING, *[RISING[-1]] * 2 * PATIENCE]))
    assert count is not None
    assert len(RISING) < count <= len(RISING) + PATIENCE
    assert converged(curve([0.5] * (2 * PATIENCE - 1))) is None
    assert converged(curve([0.5] * 2 * PATIENCE)) == 2 * PATIENCE


def test_its_time_and_samples_are_those_of_the_last_evaluation_that_counts() -> None:
    run = of(curve([0.5] * 30))
    assert converged_s(run) == 2 * PATIENCE - 1
    assert converged_samples(run) == 10 * (2 * PATIENCE - 1)
    assert converged_s(of(curve(RISING))) is None


def test_what_comes_after_convergence_does_not_count() -> None:
    assert last_score([of(curve([*[0.5] * 2 * PATIENCE, *[0.9] * PATIENCE]))]) == [0.5]


def test_perplexity_is_of_the_mean_cross_entropy_where_that_stands_still() -> None:
    falling = [EvalPoint(float(k), k, k, 0.1, 4.0 - 0.5 * min(k, 4)) for k in range(40)]
    count = converged(falling, log_likelihood)
    assert count == 4 + 2 * PATIENCE
    assert last_perplexity([of(falling)]) == [pytest.approx(math.exp(2.0))]


def test_a_run_that_diverged_has_neither() -> None:
    gone = of(curve([0.5] * 30))
    gone.status = "diverged"
    assert last_score([gone]) == last_perplexity([gone]) == [None]
    assert converged_s(gone) is None
