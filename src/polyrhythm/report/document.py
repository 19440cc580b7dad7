"""Sections of text, tables and figures as one HTML page that needs nothing but itself: the page of every command."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import Look
from polyrhythm.report.templates import pages


@dataclass(frozen=True)
class Grid:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    meanings: Sequence[str] = ()
    looks: Sequence[Look] = ()


@dataclass(frozen=True)
class DocumentSection:
    title: str
    text: str = ""
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    items: Sequence[str] = ()
    code: str = ""


@dataclass(frozen=True)
class Document:
    """A page."""

    title: str
    command: str
    facts: Mapping[str, str]
    parts: Sequence[DocumentSection]


def render_document(document: Document) -> str:
    charts = [chart for part in document.parts for chart in part.charts]
    return (
        pages("polyrhythm.report")
        .get_template("document.html.j2")
        .render(
            title=document.title,
            document=document,
            charts_json=embedded({chart.key: styled(chart) for chart in charts}),
            plotly=get_plotlyjs(),
        )
    )


def styled(chart: Chart) -> dict[str, object]:
    """The figure as data, with the layout that all figures share; colours of the theme are set in the browser."""
    clear = "rgba(0,0,0,0)"
    figure = go.Figure(chart.figure)
    figure.update_layout(template="none", paper_bgcolor=clear, plot_bgcolor=clear, autosize=True)
    if not chart.wide:
        legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0}
        figure.update_layout(height=380, margin={"t": 16, "r": 16, "b": 48, "l": 64}, legend=legend)
        figure.update_xaxes(automargin=True)
        figure.update_yaxes(automargin=True)
    data: dict[str, object] = json.loads(figure.to_json())
    return data


def embedded(value: object) -> str:
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
