"""What SelSync's Delta rests on, seen in a training: figures 3, 4, 5 and 11 of the paper."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import msgspec
from torch import Tensor

from polyrhythm.report.document import DocumentSection
from polyrhythm.report.figures import Chart
from polyrhythm.sim import Scenario
from polyrhythm_experiments.diagnose.charts import (
    ChartCurve,
    change_curves,
    curvature,
    grid_of,
    last_weights,
    rank_correlation,
    three,
)
from polyrhythm_experiments.diagnose.diagnostics import density, distance
from polyrhythm_experiments.diagnose.probe import ProbedModel
from polyrhythm_experiments.diagnose.study import Diagnosis, diagnose
from polyrhythm_experiments.reproduce.figures import over_seeds, plain, times
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.selsync.trials import ITERATIONS, cluster

DELTA, BATCHES, GRID = 0.25, 4, 120
"""SelSync's threshold, as in the paper's figures; mini-batches that gradients and curvature are taken on; points."""
IMAGES: dict[str, Any] = {"task": "cifar10-16", "model": "resnet20", "train_samples": 3_000, "test_samples": 1_000}
STEPS = 600
"""Of each of the four workers with the ResNet-20."""
EVALUATIONS = {"MLP": 40, "ResNet-20": 20}
"""Of a run of each model."""


@dataclass(frozen=True)
class Inside:
    """What one seed's trainings looked like inside.

    Args:
        shrink: standard deviation of the gradient, last evaluation over first.
        follow: rank correlation of eigenvalue and variance.
        eigenvalue, variance: the last over the first.
        together, largest: rank correlation of the mean and the largest Delta with the change of accuracy.
        settled, undecayed: Delta in the last tenth over the first, of all steps and of those before the rate decays.
        parameters, gradients: distances of weights to BSP's.
        curves: of each figure.
    """

    shrink: float
    follow: float
    eigenvalue: float
    variance: float
    together: float
    largest: float
    settled: float
    undecayed: float
    parameters: float
    gradients: float
    curves: dict[str, list[Series]]


def scenario_of(lab: Lab, model: str) -> Scenario:
    """What is trained; quick: a convolutional network on the digits stands for the ResNet-20."""
    steps, workers = (ITERATIONS, 16) if model == "MLP" else (STEPS, 4)
    every = 4 if lab.quick else steps // EVALUATIONS[model]
    images = {} if model == "MLP" else {"model": "cnn"} if lab.quick else IMAGES
    return cluster(lab, steps, workers, every, partition="seldp", **images)


def insides(lab: Lab, model: str) -> list[Inside]:
    """One for each seed; made once."""
    scenario = scenario_of(lab, model)
    made_from = [msgspec.to_builtins(scenario), DELTA, BATCHES, GRID]
    return lab.live(f"inside {model}", made_from, partial(look_inside, scenario), Inside)


def look_inside(scenario: Scenario, seed: int) -> Inside:
    seen = diagnose(scenario, seed=seed, delta=DELTA, batches=BATCHES)
    probe, layer = seen.runs["BSP"].probe, seen.layers[0]
    moments, deltas, ends = probe.moments, [change.delta for change in probe.changes], last_weights(seen, layer)
    eigenvalues, variances = curvature(moments)
    return Inside(
        shrink=spread_of(moments[-1], layer) / spread_of(moments[0], layer),
        follow=rank_correlation(eigenvalues, variances),
        eigenvalue=eigenvalues[-1] / eigenvalues[0],
        variance=variances[-1] / variances[0],
        together=rank_correlation(*changes_between(seen, fmean)),
        largest=rank_correlation(*changes_between(seen, max)),
        settled=last_over_first(deltas),
        undecayed=last_over_first(deltas[: len(deltas) // 2]),
        parameters=distance(ends["BSP"], ends["PA"]),
        gradients=distance(ends["BSP"], ends["GA"]),
        curves=curves_of(seen),
    )


def spread_of(moment: ProbedModel, layer: str) -> float:
    return float(moment.gradients[layer].std())


def changes_between(seen: Diagnosis, summary: Callable[[Sequence[float]], float]) -> tuple[list[float], list[float]]:
    """Between each evaluation and the next: the mean or largest Delta, and how much accuracy changed."""
    probe = seen.runs["BSP"].probe
    summaries, moves = [], []
    for before, after in pairwise(probe.moments):
        inside = [change.delta for change in probe.changes if before.samples < change.samples <= after.samples]
        if inside:
            summaries.append(summary(inside))
            moves.append(abs(after.accuracy - before.accuracy))
    return summaries, moves


def last_over_first(values: Sequence[float]) -> float:
    """The mean of the last tenth over that of the first.

    >>> last_over_first([4.0, *range(18), 2.0])
    4.75
    """
    tenth = max(1, len(values) // 10)
    return fmean(values[-tenth:]) / fmean(values[:tenth])


def curves_of(seen: Diagnosis) -> dict[str, list[Series]]:
    moments, layer = seen.runs["BSP"].probe.moments, seen.layers[0]
    chosen = {f"{moment.samples:,} samples": moment.gradients[layer] for moment in three(moments)}
    samples, largest, median = change_curves(seen)
    eigenvalues, variances = curvature(moments)
    times_of, scores = [moment.samples for moment in moments], [moment.accuracy for moment in moments]
    return {
        "gradient": densities(chosen),
        "curvature": [
            Series("largest eigenvalue", times_of, of_largest(eigenvalues)),
            Series("variance of the gradient", times_of, of_largest(variances)),
        ],
        "change": [
            Series("largest Delta", *thinned(samples, largest)),
            Series("median Delta", *thinned(samples, median)),
            Series("test accuracy", times_of, scores),
        ],
        "weights": densities(last_weights(seen, layer)),
    }


def of_largest(values: Sequence[float]) -> list[float]:
    """As shares of the largest; as they are if none is positive."""
    largest = max(values)
    return [value / largest for value in values] if largest > 0 else list(values)


def thinned(x: ChartCurve, y: ChartCurve) -> tuple[list[float], list[float]]:
    step = max(1, -(-len(x) // GRID))
    return x[::step].tolist(), y[::step].tolist()


def densities(values: Mapping[str, Tensor]) -> list[Series]:
    """Of each, on one grid from the smallest to the largest half percent."""
    grid = grid_of(values.values(), GRID)
    return [Series(name, grid.tolist(), density(each, grid).tolist()) for name, each in values.items()]


# -- the part of the page ----------------------------------------------------------------------------------------------


def inside_section(lab: Lab) -> DocumentSection:
    found = {model: insides(lab, model) for model in EVALUATIONS}
    rows = [row for model, seeds in found.items() for row in claims_of(model, seeds)]
    charts = [chart for model, seeds in found.items() for chart in charts_of(model, seeds[0])]
    return findings("Inside a training: figures 3 to 5 and 11", TEXT, rows, charts=charts)


TEXT = (
    f"The MLP of this page on 16 workers for {ITERATIONS} steps, and a ResNet-20 on CIFAR-10 at 16x16 pixels, 3,000 "
    f"images, on 4 workers for {STEPS} steps; the rate decays at 50 % and 75 %; SelDP. Under BSP, at 40 evaluations of "
    f"the MLP and 20 of the ResNet-20: the mean gradient of {BATCHES} mini-batches, the variance among these and the "
    f"largest eigenvalue of the Hessian on their samples. Then SelSync with delta {DELTA:g}, which averages parameters "
    "(PA) or gradients (GA). The layer is the first one. Figures are of the first seed; polyrhythm diagnose draws them "
    "for any scenario."
)


def claims_of(model: str, seeds: Sequence[Inside]) -> list[ClaimRow]:
    apart = [seed.gradients / seed.parameters for seed in seeds]
    largest = over_seeds([seed.largest for seed in seeds], plain)
    together = f"rank correlation of Delta and the change of accuracy between evaluations, {model}"
    return [
        ClaimRow(
            f"standard deviation of the first layer's gradient, last evaluation over first, {model}",
            "section II-E, fig. 3",
            "less than 1x",
            over_seeds([seed.shrink for seed in seeds], times),
        ),
        ClaimRow(
            f"rank correlation of the Hessian's largest eigenvalue and the gradient's variance, {model}",
            "section II-E, fig. 4",
            "they follow a similar course",
            over_seeds([seed.follow for seed in seeds], plain),
            course_note(seeds),
        ),
        ClaimRow(
            together,
            "section III-A, fig. 5",
            "they change together",
            over_seeds([seed.together for seed in seeds], plain),
            f"Not known. With the largest Delta in place of the mean: {largest}.",
        ),
        ClaimRow(
            f"Delta, last tenth of the steps over the first, {model}",
            "section III-A, fig. 5",
            "less than 1x",
            over_seeds([seed.settled for seed in seeds], times),
            f"The decays: {over_seeds([seed.undecayed for seed in seeds], times)} in the steps before the first one.",
        ),
        ClaimRow(
            f"distance of the first layer's weights to BSP's, GA over PA, {model}",
            "section IV-D, fig. 11",
            "more than 1x",
            over_seeds(apart, times),
        ),
    ]


def course_note(seeds: Sequence[Inside]) -> str:
    """How far both go from the first evaluation to the last."""
    eigenvalue = over_seeds([seed.eigenvalue for seed in seeds], times)
    variance = over_seeds([seed.variance for seed in seeds], times)
    return f"Not known. At the last evaluation the eigenvalue is {eigenvalue} of the first, the variance {variance}."


CAPTIONS = {
    "gradient": ("Gradient of the first layer", "Density of its elements under BSP.", "gradient", "density"),
    "curvature": ("Hessian and gradient variance", "Shares of each one's largest, under BSP.", "samples", "share"),
    "change": ("Delta and test accuracy", "Under BSP.", "samples", "Delta, accuracy"),
    "weights": ("Weights of the first layer", "Density at the end.", "weight", "density"),
}


def charts_of(model: str, seen: Inside) -> list[Chart]:
    return [
        drawing(f"inside-{key}-{model.lower()}", f"{title}, {model}", caption, (across, up), seen.curves[key])
        for key, (title, caption, across, up) in CAPTIONS.items()
    ]
