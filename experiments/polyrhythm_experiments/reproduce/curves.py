"""Learning curves of runs: as points of a figure, and when they reach an accuracy."""

from collections.abc import Mapping

from polyrhythm.report.figures import Chart
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.lab import Runs
from polyrhythm_experiments.reproduce.page import Series, drawing


def reached_s(run: RunResult, accuracy: float) -> float | None:
    return next((point.time_s for point in run.curve if point.accuracy >= accuracy), None)


def reached_samples(run: RunResult, accuracy: float) -> float | None:
    return next((float(point.samples) for point in run.curve if point.accuracy >= accuracy), None)


def accuracy_plot(key: str, title: str, caption: str, groups: Mapping[str, Runs]) -> Chart:
    series = [
        Series(name, [point.time_s for point in runs[0].curve], [point.accuracy for point in runs[0].curve])
        for name, runs in groups.items()
    ]
    return drawing(key, title, caption, ("time (s)", "test accuracy"), series, log_x=True, percent_y=True)
