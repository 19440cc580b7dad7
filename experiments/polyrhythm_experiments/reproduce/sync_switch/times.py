"""Times of runs beside one another."""

from polyrhythm_experiments.reproduce.curves import reached_s
from polyrhythm_experiments.reproduce.figures import Measured, over_seeds, percent, ratio, times
from polyrhythm_experiments.reproduce.lab import Runs
from polyrhythm_experiments.reproduce.sync_switch.accuracy import final

NOISE = 0.005
"""Time to accuracy is that to the mean accuracy of BSP less this."""


def durations(runs: Runs) -> list[float | None]:
    return [run.duration_s if run.status == "ok" else None for run in runs]


def faster(runs: Runs, base: Runs) -> Measured:
    return ratio(durations(base), durations(runs), times)


def sooner(runs: Runs, base: Runs) -> Measured:
    """Speed-up in time to accuracy."""
    accuracies = [accuracy for accuracy in final(base) if accuracy is not None]
    mark = sum(accuracies) / len(accuracies) - NOISE
    return ratio([reached_s(run, mark) for run in base], [reached_s(run, mark) for run in runs], times)


def saved(runs: Runs, base: Runs) -> Measured:
    return over_seeds([1 - a.duration_s / b.duration_s for a, b in zip(runs, base, strict=True)], percent)
