"""A page as one HTML file."""

import plotly.graph_objects as go

from polyrhythm.report.cells import number
from polyrhythm.report.document import Document, DocumentSection, Grid, render_document
from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import look
from polyrhythm_experiments.reproduce.markdown import HEADINGS, row_cells
from polyrhythm_experiments.reproduce.page import Page, Plot, Section, Series


def html(page: Page, command: str) -> str:
    """The page, with figures that can be zoomed."""
    parts = [part_of(section) for section in page.sections]
    if page.missing:
        parts.append(DocumentSection("Not here", " ".join(page.missing)))
    facts = {"source": page.source, **page.conditions}
    return render_document(Document(page.title, command, facts, parts))


def part_of(section: Section) -> DocumentSection:
    """A section."""
    rows = [Grid(HEADINGS, [row_cells(row) for row in section.rows])] if section.rows else []
    tables = [Grid(table.headings, table.rows, table.title) for table in section.tables]
    return DocumentSection(section.title, section.text, [*rows, *tables], [chart_of(plot) for plot in section.plots])


def chart_of(plot: Plot) -> Chart:
    """A figure, its last points as the table of its numbers."""
    figure = go.Figure()
    for index, series in enumerate(plot.series):
        add_series(figure, plot, series, index)
    figure.update_layout(xaxis_title=plot.x_label, yaxis_title=plot.y_label)
    figure.update_xaxes(type="log" if plot.log_x else None)
    figure.update_yaxes(tickformat=".0%" if plot.percent_y else None)
    rows = [[series.name, *map(str, points(series))] for series in plot.series]
    return Chart(plot.key, plot.title, plot.caption, figure, ("series", "points (x: y)"), rows)


def add_series(figure: go.Figure, plot: Plot, series: Series, index: int) -> None:
    """A line or a group of bars."""
    colour, dash, _ = look(index)
    if plot.kind == "bars":
        figure.add_bar(x=list(series.x), y=list(series.y), name=series.name, marker={"color": colour})
        return
    line = {"color": colour, "dash": dash, "width": 2}
    figure.add_scatter(x=list(series.x), y=list(series.y), name=series.name, mode="lines", line=line)


def points(series: Series) -> list[str]:
    """At most ten points, in words."""
    pairs = list(zip(series.x, series.y, strict=True))
    step = max(1, -(-len(pairs) // 10))
    shown = [f"{x if isinstance(x, str) else number(x)}: {number(y)}" for x, y in pairs[::step]]
    return [", ".join(shown)]
