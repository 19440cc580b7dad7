"""The figures of the page, each with its title, a description for who cannot see it, and its numbers as a table."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from polyrhythm.report.palette import NEUTRAL, Look, faded
from polyrhythm.telemetry.numbers import NOTHING, number, size
from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm.telemetry.stragglers import Lateness

RunsByPolicy = Mapping[str, Sequence[RunResult]]

BINS = 20


@dataclass(frozen=True)
class Chart:
    """A figure of the page; a wide one takes the page's width and has a layout of its own."""

    key: str
    title: str
    description: str
    figure: go.Figure
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    wide: bool = False


@dataclass(frozen=True)
class Axis:
    key: str
    label: str
    value: Callable[[EvalPoint], float]


TIME = Axis("time", "time (s)", lambda point: point.time_s)
SAMPLES = Axis("samples", "samples", lambda point: point.samples)
ACCURACY = Axis("accuracy", "test accuracy", lambda point: point.accuracy)
LOSS = Axis("loss", "test loss", lambda point: point.loss)


POINTS = 200
"""Points of a mean curve; a single run keeps its own."""


class Band(NamedTuple):
    """Mean of a quantity on a grid, and its sample standard deviation (0 for one seed). Arrays of one length."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def band(runs: Sequence[RunResult], x: Callable[[EvalPoint], float], y: Callable[[EvalPoint], float]) -> Band | None:
    """The curves of `runs`, interpolated linearly, over the stretch that all of them cover; None if there is none.

    Points that are not finite, the last ones of a diverged run, are left out.
    """
    curves = [curve for run in runs if (curve := finite_points(run, x, y))]
    if not curves:
        return None
    if len(curves) == 1:
        xs, ys = np.array(curves[0]).T
        return Band(xs, ys, np.zeros_like(ys))
    start, stop = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if stop < start:
        return None
    grid = np.linspace(start, stop, POINTS)
    values = np.stack([np.interp(grid, *np.array(curve).T) for curve in curves])
    return Band(grid, values.mean(axis=0), values.std(axis=0, ddof=1))


def finite_points(
    run: RunResult, x: Callable[[EvalPoint], float], y: Callable[[EvalPoint], float]
) -> list[tuple[float, float]]:
    points = [(float(x(point)), float(y(point))) for point in run.curve]
    return [point for point in points if all(map(math.isfinite, point))]


def curve_charts(runs: RunsByPolicy, looks: Mapping[str, Look], target: float | None) -> list[Chart]:
    """Accuracy and loss, each against time and against samples; nothing for runs without a model."""
    if not any(run.curve for group in runs.values() for run in group):
        return []
    return [curve_chart(runs, looks, x, y, target) for y in (ACCURACY, LOSS) for x in (TIME, SAMPLES)]


def curve_chart(runs: RunsByPolicy, looks: Mapping[str, Look], x: Axis, y: Axis, target: float | None) -> Chart:
    """One learning curve a policy: the mean over seeds, and a band of one standard deviation."""
    bands = {policy: b for policy, group in runs.items() if (b := band(group, x.value, y.value))}
    figure = go.Figure()
    for policy, b in bands.items():
        add_curve(figure, policy, b, looks[policy])
    if y is ACCURACY and target is not None:
        figure.add_hline(target, line={"dash": "dash", "width": 1, "color": NEUTRAL})
    figure.update_layout(xaxis_title=x.label, yaxis_title=y.label, hovermode="closest")
    if y is ACCURACY:
        figure.update_yaxes(tickformat=".0%")
    rows = [[policy, number(b.x[-1]), number(b.mean[-1]), number(b.deviation[-1])] for policy, b in bands.items()]
    ends = listing({policy: f"ends at {end}" for policy, _, end, _ in rows})
    return Chart(
        key=f"{y.key}-{x.key}",
        title=f"{y.label.capitalize()} against {x.key}",
        description=f"Line chart of {y.label} against {x.label}, one line a policy. {ends}",
        figure=figure,
        headings=("policy", f"last {x.label}", f"{y.label} there", "deviation over seeds"),
        rows=rows,
    )


def add_curve(figure: go.Figure, policy: str, b: Band, look: Look) -> None:
    if b.deviation.any():
        upper, lower = b.mean + b.deviation, b.mean - b.deviation
        outline = {"x": [*b.x, *b.x[::-1]], "y": [*upper, *lower[::-1]]}
        fill = {"fill": "toself", "fillcolor": faded(look.colour, 0.18), "line": {"width": 0}}
        figure.add_scatter(**outline, **fill, legendgroup=policy, showlegend=False, hoverinfo="skip")
    line = {"color": look.colour, "dash": look.dash, "width": 2}
    marker = {"symbol": look.symbol, "size": 7, "maxdisplayed": 12}
    figure.add_scatter(x=b.x, y=b.mean, name=policy, legendgroup=policy, mode="lines+markers", line=line, marker=marker)


def staleness_chart(runs: RunsByPolicy, looks: Mapping[str, Look]) -> Chart | None:
    """Share of the applied gradients by staleness; None if no policy exchanges gradients."""
    totals = {policy: total for policy, group in runs.items() if (total := staleness_counts(group))}
    if not totals:
        return None
    last = max(max(total) for total in totals.values())
    width = -(-(last + 1) // BINS)
    labels = [label(start, width) for start in range(0, last + 1, width)]
    shares = {policy: binned(total, width, len(labels)) for policy, total in totals.items()}
    figure = go.Figure(layout={"barmode": "group", "bargap": 0.15})
    for policy, values in shares.items():
        marker = {"color": looks[policy].colour, "pattern": {"shape": HATCHES[looks[policy].dash]}}
        figure.add_bar(x=labels, y=values, name=policy, marker=marker)
    figure.update_layout(xaxis={"title": "staleness (updates)", "type": "category"}, yaxis_title="share of gradients")
    figure.update_yaxes(tickformat=".0%")
    return Chart(
        key="staleness",
        title="Staleness of the applied gradients",
        description="Bar chart: which share of its gradients each policy applied at which staleness. "
        + listing({policy: f"at most {max(total)}" for policy, total in totals.items()}),
        figure=figure,
        headings=("policy", *labels),
        rows=[[policy, *(f"{100 * share:.1f} %" for share in values)] for policy, values in shares.items()],
    )


HATCHES = {"solid": "", "dash": "/", "dot": "."}
"""Fill of a bar for the dash of a line."""


def staleness_counts(runs: Sequence[RunResult]) -> dict[int, int]:
    return sum((Counter(run.staleness_counts) for run in runs), Counter[int]())


def binned(counts: Mapping[int, int], width: int, bins: int) -> list[float]:
    everything = sum(counts.values())
    shares = [0.0] * bins
    for staleness, gradients in counts.items():
        shares[staleness // width] += gradients / everything
    return shares


def label(start: int, width: int) -> str:
    """Name of a bin.

    >>> label(3, 1), label(10, 5)
    ('3', '10-14')
    """
    return str(start) if width == 1 else f"{start}-{start + width - 1}"


def bytes_chart(runs: RunsByPolicy, looks: Mapping[str, Look]) -> Chart | None:
    """Bytes pushed and pulled, mean over seeds; None if links carry nothing."""
    sizes = {policy: [mean_bytes(group, way) for way in WAYS] for policy, group in runs.items()}
    if not any(any(pair) for pair in sizes.values()):
        return None
    figure = go.Figure(layout={"barmode": "stack"})
    policies = list(sizes)
    for position, way in enumerate(WAYS):
        figure.add_bar(
            y=policies,
            x=[sizes[policy][position] for policy in policies],
            orientation="h",
            name=way,
            marker={
                "color": [faded(looks[policy].colour, 1 - 0.45 * position) for policy in policies],
                "pattern": {"shape": "/" if position else ""},
            },
            showlegend=False,
        )
    figure.update_layout(xaxis={"title": "bytes: pushed, then (hatched) pulled", "tickformat": "~s", "ticksuffix": "B"})
    figure.update_yaxes(autorange="reversed")
    return Chart(
        key="bytes",
        title="Bytes on the wire",
        description="Bar chart of the bytes pushed and pulled by all workers. "
        + listing({policy: size(sum(pair)) for policy, pair in sizes.items()}),
        figure=figure,
        headings=("policy", *WAYS),
        rows=[[policy, *map(size, pair)] for policy, pair in sizes.items()],
    )


WAYS = ("pushed", "pulled")


def listing(said: Mapping[str, str]) -> str:
    """What a description says of each policy.

    >>> listing({"bsp": "waits 40 %", "asp": "waits 0 %"})
    'bsp waits 40 %; asp waits 0 %.'
    """
    return "; ".join(f"{policy} {words}" for policy, words in said.items()) + "."


def mean_bytes(runs: Sequence[RunResult], way: str) -> float:
    total: float = sum(getattr(run, f"bytes_{way}") for run in runs)
    return total / len(runs)


MOST_WORKERS = 32
"""A figure of more workers than this shows those that are latest."""

PARTS = (("compute", "compute_s", 1.0, ""), ("transfer", "transfer_s", 0.6, "/"), ("wait", "wait_s", 0.25, "."))
"""What a step consists of: name, field, strength of the colour, hatching."""


def arrivals_chart(runs: RunsByPolicy, looks: Mapping[str, Look]) -> Chart | None:
    """Seconds of a mean step of each worker, of each policy's first run; None if nothing was measured."""
    first = {policy: group[0] for policy, group in runs.items() if group[0].arrivals}
    if not first:
        return None
    figure = go.Figure(layout={"barmode": "stack"})
    bars = [(policy, worker, arrival) for policy, run in first.items() for worker, arrival in latest(run)]
    for name, field, strength, pattern in PARTS:
        figure.add_bar(
            y=[[policy for policy, _, _ in bars], [f"worker {worker}" for _, worker, _ in bars]],
            x=[getattr(arrival, field) for _, _, arrival in bars],
            orientation="h",
            name=name,
            marker={
                "color": [faded(looks[policy].colour, strength) for policy, _, _ in bars],
                "pattern": {"shape": pattern},
            },
            showlegend=False,
        )
    figure.update_layout(xaxis={"title": "seconds of a step: compute, then (hatched) transfer, then (dotted) wait"})
    figure.update_yaxes(autorange="reversed")
    return Chart(
        key="arrivals",
        title="Who arrives when",
        description="Bar chart of a mean step of each worker in the first run of each policy: what it computes and "
        "transfers until the exchange, and what it waits there. "
        + listing({policy: verdict(run) for policy, run in first.items()}),
        figure=figure,
        headings=("policy", "worker", "compute", "transfer", "wait", "late", "kind"),
        rows=[[policy, *row(worker, arrival)] for policy, run in first.items() for worker, arrival in latest(run)],
    )


def latest(run: RunResult) -> Sequence[tuple[int, Lateness]]:
    """Workers in order of their numbers; of very many those that take longest to the exchange."""
    slowest = sorted(run.arrivals.items(), key=lambda item: -item[1].compute_s - item[1].transfer_s)
    return sorted(slowest[:MOST_WORKERS])


def row(worker: int, arrival: Lateness) -> list[str]:
    times = (f"{seconds:.4g} s" for seconds in (arrival.compute_s, arrival.transfer_s, arrival.wait_s))
    late = f"{arrival.spells}x, {arrival.late_share:.0%} of the time" if arrival.spells else NOTHING
    return [str(worker), *times, late, arrival.kind or NOTHING]


def verdict(run: RunResult) -> str:
    late = {worker: arrival.kind for worker, arrival in run.arrivals.items() if arrival.kind}
    if not late:
        return "has no straggler"
    return "has " + ", ".join(f"worker {worker} ({kind})" for worker, kind in sorted(late.items()))
