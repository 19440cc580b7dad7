"""The page of a comparison: figures, table, scenario and command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyrhythm.report.document import Document, DocumentSection, Grid, render_document
from polyrhythm.report.facts import facts, target_of, troubles
from polyrhythm.report.figures import Chart, arrivals_chart, bytes_chart, curve_charts, staleness_chart
from polyrhythm.report.overview_figure import overview_chart
from polyrhythm.report.palette import Look, looks
from polyrhythm.report.table import cells, columns, rows
from polyrhythm.report.timeline import Timeline
from polyrhythm.report.timeline_figure import timeline_chart
from polyrhythm.telemetry.result import RunResult


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
    results = comparison.results
    look_of = looks(result.policy for result in results)
    parts = [
        result_part(results, look_of),
        DocumentSection("Figures", charts=list_charts(comparison, look_of)),
        DocumentSection("Scenario", code=comparison.scenario_toml),
    ]
    if lines := troubles(results):
        parts.insert(0, DocumentSection("Runs without a result", items=lines))
    title = f"{results[0].scenario} under {len(look_of)} policies"
    return render_document(Document(title, comparison.command, facts(results), parts))


def result_part(results: Sequence[RunResult], look_of: Mapping[str, Look]) -> DocumentSection:
    """The table, one row a policy."""
    ranking, has_target = rows(results), target_of(results) is not None
    headings, meanings = zip(*((c.heading, c.meaning) for c in columns(ranking, has_target)), strict=True)
    swatches = [look_of[row.policy] for row in ranking]
    return DocumentSection("Result", grids=[Grid("", headings, cells(ranking, has_target), meanings, swatches)])


def list_charts(comparison: Comparison, look_of: Mapping[str, Look]) -> list[Chart]:
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
