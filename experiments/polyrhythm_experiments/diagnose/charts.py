"""The figures of a diagnosis, after figures 3, 4, 5 and 11 of the SelSync paper."""

from collections.abc import Collection, Mapping, Sequence
from statistics import correlation

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from torch import Tensor

from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import look
from polyrhythm.telemetry.numbers import number
from polyrhythm_experiments.diagnose.diagnostics import density, distance
from polyrhythm_experiments.diagnose.probe import ProbedModel
from polyrhythm_experiments.diagnose.study import Diagnosis

ChartCurve = NDArray[np.float64]

GRID = 200
STEPS = 600
"""Most points of the curve of Delta."""


def list_charts(diagnosis: Diagnosis) -> dict[str, list[Chart]]:
    return {
        "Gradients over the epochs": [gradient_chart(diagnosis, layer) for layer in diagnosis.layers],
        "Relative gradient change beside accuracy": [change_chart(diagnosis)],
        "Curvature beside gradient variance": [curvature_chart(diagnosis)],
        "Weights under BSP, PA and GA": [weight_chart(diagnosis, layer) for layer in diagnosis.layers],
    }


def gradient_chart(diagnosis: Diagnosis, layer: str) -> Chart:
    """Densities of a layer's gradient at the first, a middle and the last evaluation of BSP (figure 3)."""
    moments = diagnosis.runs["BSP"].probe.moments
    chosen = {f"{number(moment.samples)} samples": moment.gradients[layer] for moment in three(moments)}
    deviations = {name: float(values.std()) for name, values in chosen.items()}
    return Chart(
        key=f"gradient-{plain(layer)}",
        title=f"Gradient of {layer}",
        description="Density of the elements of the mean gradient of "
        f"{len(diagnosis.runs['BSP'].probe.batches)} mini-batches at three moments under BSP. Standard deviation: "
        + listed(deviations),
        figure=densities(chosen, f"gradient of {layer}"),
        headings=("moment", "standard deviation"),
        rows=[[name, number(value)] for name, value in deviations.items()],
    )


def weight_chart(diagnosis: Diagnosis, layer: str) -> Chart:
    ends = last_weights(diagnosis, layer)
    gaps = {name: distance(ends["BSP"], values) for name, values in ends.items() if name != "BSP"}
    rows = [[name, number(float(v.std())), number(gaps.get(name, 0.0))] for name, v in ends.items()]
    return Chart(
        key=f"weights-{plain(layer)}",
        title=f"Weights of {layer}",
        description=f"Density of the weights at the end under BSP, and under SelSync (delta {diagnosis.delta:g}) with "
        "parameter (PA) and gradient aggregation (GA: the mean of the replicas, and one of them). Distance to BSP "
        "(Wasserstein-1): " + listed(gaps),
        figure=densities(ends, f"weight of {layer}"),
        headings=("run", "standard deviation", "distance to BSP"),
        rows=rows,
    )


def change_chart(diagnosis: Diagnosis) -> Chart:
    """Delta of every step under BSP, the largest and the median of the workers, above the test accuracy (figure 5)."""
    samples, largest, median = change_curves(diagnosis)
    moments = diagnosis.runs["BSP"].probe.moments
    figure = stacked("samples")
    for index, (name, values) in enumerate({"largest of all workers": largest, "median worker": median}.items()):
        figure.add_scatter(x=samples, y=values, name=name, mode="lines", line=line(index), row=1, col=1)
    add_accuracy(figure, moments)
    figure.update_yaxes(title="Delta", type="log", row=1)
    quantiles = [float(np.quantile(largest, share)) for share in (0.5, 0.9, 0.99)] if len(largest) else []
    return Chart(
        key="change",
        title="Delta(g) beside test accuracy",
        description="Above, the relative change of the smoothed squared gradient norm (window 25, factor n/100) under "
        "BSP; below, the test accuracy. Quantiles 50, 90, 99 % of the largest Delta: "
        + ", ".join(map(number, quantiles))
        + ".",
        figure=figure,
        headings=("samples", "largest Delta", "median Delta"),
        rows=[[number(x), number(a), number(b)] for x, a, b in thin(samples, largest, median, 12)],
    )


def change_curves(diagnosis: Diagnosis) -> tuple[ChartCurve, ChartCurve, ChartCurve]:
    """Samples, the largest Delta and the median one of stretches of steps, a step each if there are few."""
    by_round: dict[int, list[float]] = {}
    probe = diagnosis.runs["BSP"].probe
    for count, change in enumerate(probe.changes):
        by_round.setdefault(count // diagnosis.scenario.workers, []).append(change.delta)
    ends = [change.samples for change in probe.changes[:: diagnosis.scenario.workers]][: len(by_round)]
    table = np.array([(end, max(d), np.median(d)) for end, d in zip(ends, by_round.values(), strict=True)])
    pieces = np.array_split(table, min(STEPS, len(table))) if len(table) else []
    rows = np.array([(piece[-1, 0], piece[:, 1].max(), np.median(piece[:, 2])) for piece in pieces]).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def curvature_chart(diagnosis: Diagnosis) -> Chart:
    """The largest eigenvalue of the Hessian above the variance of the gradient, under BSP (figure 4)."""
    moments = diagnosis.runs["BSP"].probe.moments
    samples = [moment.samples for moment in moments]
    eigenvalues, variances = curvature(moments)
    figure = stacked("samples")
    figure.add_scatter(x=samples, y=eigenvalues, name="largest eigenvalue", line=line(0), row=1, col=1)
    figure.add_scatter(x=samples, y=variances, name="variance of the gradient", line=line(1), row=2, col=1)
    figure.update_yaxes(title="eigenvalue", row=1)
    figure.update_yaxes(title="variance", row=2)
    both = rank_correlation(eigenvalues, variances)
    return Chart(
        key="curvature",
        title="Hessian and gradient variance",
        description="The largest eigenvalue of the Hessian (power iteration on Hessian-vector products) and the trace "
        f"of the covariance of mini-batch gradients, on the same samples. Rank correlation {both:.2f} over "
        f"{len(moments)} moments.",
        figure=figure,
        headings=("samples", "eigenvalue", "variance"),
        rows=[[number(x), number(a), number(b)] for x, a, b in zip(samples, eigenvalues, variances, strict=True)],
    )


def three(moments: Sequence[ProbedModel]) -> list[ProbedModel]:
    """The first, one in the middle, the last."""
    return [moments[0], moments[len(moments) // 2], moments[-1]]


def curvature(moments: Sequence[ProbedModel]) -> tuple[list[float], list[float]]:
    """Eigenvalues and variances."""
    variances = [moment.spread.variance if moment.spread else 0.0 for moment in moments]
    return [moment.eigenvalue or 0.0 for moment in moments], variances


def last_weights(diagnosis: Diagnosis, layer: str) -> dict[str, Tensor]:
    """Those of each run at its end, by name."""
    ends = {name: seen.probe.moments[-1].weights[layer] for name, seen in diagnosis.runs.items()}
    return ends | {"GA, one replica": diagnosis.runs["GA"].probe.moments[-1].replica[layer]}


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's coefficient; 0 where one side does not vary.

    >>> rank_correlation([1, 2, 3], [10, 20, 15])
    0.5
    """
    if len(left) < 2 or len(set(left)) == 1 or len(set(right)) == 1:
        return 0.0
    return round(correlation(ranks(left), ranks(right)), 6)


def ranks(values: Sequence[float]) -> list[int]:
    order: list[int] = np.argsort(np.argsort(values, kind="stable"), kind="stable").tolist()
    return order


def densities(values: Mapping[str, Tensor], label: str) -> go.Figure:
    grid = grid_of(values.values(), GRID)
    figure = go.Figure()
    for index, (name, each) in enumerate(values.items()):
        figure.add_scatter(x=grid, y=density(each, grid), name=name, mode="lines", line=line(index))
    figure.update_layout(xaxis_title=label, yaxis_title="density")
    return figure


def grid_of(values: Collection[Tensor], points: int) -> ChartCurve:
    """From the smallest to the largest half percent of all; a unit to both sides of values that are all equal."""
    low = min(float(np.quantile(each.numpy(), 0.005)) for each in values)
    high = max(float(np.quantile(each.numpy(), 0.995)) for each in values)
    return np.linspace(low, high, points) if high > low else np.linspace(low - 1, low + 1, points)


def stacked(label: str) -> go.Figure:
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.06)
    figure.update_xaxes(title=label, row=2)
    return figure


def add_accuracy(figure: go.Figure, moments: Sequence[ProbedModel]) -> None:
    x, y = [m.samples for m in moments], [m.accuracy for m in moments]
    figure.add_scatter(x=x, y=y, name="test accuracy", mode="lines", line=line(2), row=2, col=1)
    figure.update_yaxes(title="test accuracy", tickformat=".0%", row=2)


def line(index: int) -> dict[str, object]:
    colour, dash, _ = look(index)
    return {"color": colour, "dash": dash, "width": 1.5}


def thin(x: ChartCurve, a: ChartCurve, b: ChartCurve, most: int) -> list[tuple[float, float, float]]:
    step = max(1, -(-len(x) // most))
    return [(float(u), float(v), float(w)) for u, v, w in zip(x[::step], a[::step], b[::step], strict=True)]


def listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) + "."


def plain(name: str) -> str:
    return name.replace(".", "-")
