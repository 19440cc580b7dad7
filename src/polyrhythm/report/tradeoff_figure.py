"""Cost against success of search settings, one plot a setup above the other."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from polyrhythm.report.palette import COLOURS

PLOT_PX, GAP_PX = 190, 80

GOOD, OTHER = COLOURS[1], COLOURS[0]
"""Settings that find the right answer in 99 % of all cases, and the others."""

SUCCESSFUL = 0.99


class Point(NamedTuple):
    """A setting: `cost` in BSP trainings, `success` a probability, `label` beside its marker."""

    cost: float
    success: float
    label: str
    recurring: bool


def tradeoff_figure(panels: Sequence[tuple[str, Sequence[Point]]]) -> go.Figure:
    """Plots above each other: circles are new jobs, squares recurring ones."""
    inner_px = PLOT_PX * len(panels) + GAP_PX * (len(panels) - 1)
    spacing = GAP_PX / inner_px if len(panels) > 1 else 0
    figure = make_subplots(rows=len(panels), vertical_spacing=spacing, subplot_titles=[name for name, _ in panels])
    margin = {"t": 34, "b": 56, "l": 70, "r": 20}
    figure.update_layout(height=inner_px + margin["t"] + margin["b"], margin=margin)
    for row, (_, points) in enumerate(panels, 1):
        for recurring in (False, True):
            for good in (False, True):
                add_points(figure, row, points, recurring, good)
        figure.update_xaxes(range=[0, 1.05 * max(point.cost for point in points)], row=row)
    figure.update_xaxes(title="cost of the search, BSP trainings (labels: BSP runs, runs per candidate)")
    figure.update_yaxes(range=[0, 1.04], tickformat=".0%")
    return figure


def add_points(figure: go.Figure, row: int, points: Sequence[Point], recurring: bool, good: bool) -> None:
    """The settings of one kind of job that are as successful."""
    shown = [p for p in points if p.recurring is recurring and (p.success >= SUCCESSFUL) is good]
    if not shown:
        return
    job = "recurring job" if recurring else "new job"
    figure.add_scatter(
        x=[point.cost for point in shown],
        y=[point.success for point in shown],
        text=[point.label for point in shown],
        name=f"{job}, right in at least 99 %" if good else job,
        mode="markers+text",
        textposition="bottom center",
        marker={"color": GOOD if good else OTHER, "symbol": "square" if recurring else "circle", "size": 10},
        row=row,
        col=1,
    )
