"""One HTML page that needs nothing but itself: figures, table, scenario and command of a comparison."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from polyrhythm import __version__
from polyrhythm.report.arrivals import arrivals_chart
from polyrhythm.report.cells import cells, columns
from polyrhythm.report.facts import facts, target_of, troubles
from polyrhythm.report.figures import Chart, bytes_chart, curve_charts, staleness_chart
from polyrhythm.report.overview_figure import overview_chart
from polyrhythm.report.palette import Look, looks
from polyrhythm.report.table import rows
from polyrhythm.report.timeline import Timeline
from polyrhythm.report.timeline_figure import timeline_chart
from polyrhythm.telemetry.result import RunResult

WIDE = ("overview", "timeline")
"""Figures that take the width of the page, have a layout of their own, and show their description."""


@dataclass(frozen=True)
class Comparison:
    """All that a page shows.

    Args:
        command: the exact command that made it.
        scenario_toml: the scenario in force, overrides included.
        results: one a policy and seed; at least one.
        timelines: one a policy, named as in the results.
    """

    command: str
    scenario_toml: str
    results: Sequence[RunResult]
    timelines: Sequence[Timeline] = ()


def render(comparison: Comparison) -> str:
    """The page."""
    results = comparison.results
    has_target = target_of(results) is not None
    ranking = rows(results)
    look_of = looks(result.policy for result in results)
    charts = list_charts(comparison, look_of)
    environment = Environment(
        loader=PackageLoader("polyrhythm.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        title=f"{results[0].scenario} under {len(ranking)} policies",
        version=__version__,
        comparison=comparison,
        facts=facts(results),
        troubles=troubles(results),
        columns=columns(ranking, has_target),
        table=list(zip((look_of[row.policy] for row in ranking), cells(ranking, has_target), strict=True)),
        charts=charts,
        wide=WIDE,
        charts_json=embedded({chart.key: styled(chart) for chart in charts}),
        plotly=get_plotlyjs(),
    )


def list_charts(comparison: Comparison, look_of: Mapping[str, Look]) -> list[Chart]:
    """The figures that these results have data for."""
    by_policy = {
        policy: [result for result in comparison.results if result.policy == policy and result.status != "failed"]
        for policy in look_of
    }
    runs = {policy: group for policy, group in by_policy.items() if group}
    charts: list[Chart | None] = [*curve_charts(runs, look_of, target_of(comparison.results))]
    if comparison.timelines:
        charts += [overview_chart(comparison.timelines, look_of), timeline_chart(comparison.timelines, look_of)]
    charts += [arrivals_chart(runs, look_of), staleness_chart(runs, look_of), bytes_chart(runs, look_of)]
    return [chart for chart in charts if chart is not None]


def styled(chart: Chart) -> dict[str, object]:
    """The figure as data, with the layout that all figures share; colours of the theme are set in the browser."""
    clear = "rgba(0,0,0,0)"
    chart.figure.update_layout(template="none", paper_bgcolor=clear, plot_bgcolor=clear, autosize=True)
    if chart.key not in WIDE:
        legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0}
        chart.figure.update_layout(height=380, margin={"t": 16, "r": 16, "b": 48, "l": 64}, legend=legend)
        chart.figure.update_xaxes(automargin=True)
        chart.figure.update_yaxes(automargin=True)
    figure: dict[str, object] = json.loads(chart.figure.to_json())
    return figure


def embedded(value: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
