"""Accuracies of runs: at the end, and converged by the paper's criterion."""

from collections.abc import Sequence

from polyrhythm.telemetry.result import EvalPoint
from polyrhythm_experiments.reproduce.figures import Measured, difference, over_seeds, percent
from polyrhythm_experiments.reproduce.lab import Runs

PATIENCE, CHANGE = 5, 0.001
"""The paper's criterion: a run has converged when so many evaluations differ by no more than this."""
CHANCE = 0.1
"""Where a run that diverged ends."""


def final(runs: Runs) -> list[float | None]:
    """Accuracy of each seed at the end of the workload."""
    return [CHANCE if run.final_accuracy is None else run.final_accuracy for run in runs]


def less(runs: Runs, base: Runs) -> Measured:
    return difference(final(runs), final(base))


def converged(curve: Sequence[EvalPoint]) -> float | None:
    """Accuracy at the first evaluation at which the criterion holds; None if it never does.

    >>> converged([EvalPoint(float(k), k, k, min(0.5, 0.1 * k), 1.0) for k in range(12)])
    0.5
    """
    accuracies = [point.accuracy for point in curve]
    for end in range(PATIENCE, len(accuracies) + 1):
        last = accuracies[end - PATIENCE : end]
        if max(last) - min(last) <= CHANGE:
            return last[-1]
    return None


def converged_text(runs: Runs) -> str:
    """The mean of the seeds for which it holds, and how many these are."""
    there = [value for run in runs if (value := converged(run.curve)) is not None]
    of_all = f"{len(there)} of {len(runs)}"
    return f"{percent(sum(there) / len(there))} ({of_all})" if there else f"never ({of_all})"


def final_text(runs: Runs) -> str:
    return str(over_seeds(final(runs), percent))
