"""The whole run at a glance: how busy each worker was in each stretch of time, for runs too long for the timeline."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from polyrhythm.report.figures import Chart, listing
from polyrhythm.report.palette import Look, faded
from polyrhythm.report.timeline import Span, Timeline, common_window
from polyrhythm.report.timeline_figure import WORKERS, name_rows, rows_of_axes, shown_part
from polyrhythm.telemetry.numbers import number, percent

STRETCHES = 240
"""Columns of the figure."""


def overview_chart(timelines: Sequence[Timeline], looks: Mapping[str, Look]) -> Chart | None:
    """Share of time in which each worker did not wait, on one time axis; None if the timeline shows the whole runs."""
    if all(timeline.complete for timeline in shown_part(timelines)):
        return None
    end_s = common_window(timelines)
    whole = [timeline.until(end_s, WORKERS) for timeline in timelines]
    edges = np.linspace(0, end_s, STRETCHES + 1)
    figure = rows_of_axes(whole)
    busy = {timeline.policy: busy_shares(timeline, edges) for timeline in whole}
    for position, timeline in enumerate(whole, 1):
        add_overview(figure, position, timeline, edges, busy[timeline.policy], looks[timeline.policy].colour)
    extremes = {policy: idlest_and_busiest(shares) for policy, shares in busy.items()}
    return Chart(
        key="overview",
        title="How busy the workers were",
        description=f"The first seed, {number(end_s)} s in stretches of {number(end_s / STRETCHES)} s. "
        "One row a worker: the fuller the colour, the less it waited. "
        + listing({policy: f"keeps its idlest worker {idlest} busy" for policy, (idlest, _) in extremes.items()}),
        figure=figure,
        headings=("policy", "idlest worker busy", "busiest worker busy"),
        rows=[[policy, *pair] for policy, pair in extremes.items()],
        wide=True,
    )


def idlest_and_busiest(shares: NDArray[np.float64]) -> tuple[str, str]:
    means = np.nanmean(shares, axis=1)
    return percent(means.min()), percent(means.max())


def add_overview(
    figure: go.Figure,
    position: int,
    timeline: Timeline,
    edges: NDArray[np.float64],
    busy: NDArray[np.float64],
    colour: str,
) -> None:
    figure.add_heatmap(
        x=(edges[:-1] + edges[1:]) / 2,
        y=timeline.workers,
        z=busy.astype(np.float32),
        zmin=0,
        zmax=1,
        colorscale=[[0, faded(colour, 0.0)], [1, colour]],
        showscale=False,
        ygap=2,
        hovertemplate="worker %{y} around %{x:.4g} s: busy %{z:.0%}<extra></extra>",
        row=position,
        col=1,
    )
    name_rows(figure, position, timeline)


def busy_shares(timeline: Timeline, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of time in which a worker did not wait; workers x stretches, nan where it was not there."""
    shares = []
    for worker in timeline.workers:
        spans = [span for span in timeline.spans if span.worker == worker]
        live = seconds(spans, edges)
        waited = seconds([span for span in spans if span.kind == "wait"], edges)
        shares.append(np.divide(live - waited, live, out=np.full_like(live, np.nan), where=live > 1e-9 * edges[-1]))
    return np.array(shares)


def seconds(spans: Sequence[Span], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time that these spans, in order and apart, cover of each stretch between two edges.

    >>> seconds([Span(0, "wait", 1.0, 2.0), Span(0, "wait", 3.0, 6.0)], np.array([0.0, 1.5, 4.0, 8.0])).tolist()
    [0.5, 1.5, 2.0]
    """
    if not spans:
        return np.zeros(len(edges) - 1)
    times = np.array([(span.start_s, span.end_s) for span in spans])
    until = np.cumsum(times[:, 1] - times[:, 0])
    covered = np.column_stack((until - (times[:, 1] - times[:, 0]), until))
    return np.diff(np.interp(edges, times.ravel(), covered.ravel()))
