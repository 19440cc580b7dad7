"""What the page of a reproduction is made of: the parts of every page, claims beside what came out, and figures."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import plotly.graph_objects as go

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import look
from polyrhythm.telemetry.numbers import number
from polyrhythm_experiments.reproduce.figures import Measured

HEADINGS = ("what", "in the paper", "paper", "here", "why they differ")
MISSING = "Not here"


class ClaimRow(NamedTuple):
    """One claim beside what came out here.

    Args:
        what: the quantity and its conditions.
        place: where the paper has it, as in "section 5, figure 4".
        paper: the paper's number, as it prints it.
        ours: the same quantity here.
        why: why they differ; empty where they agree.
    """

    what: str
    place: str
    paper: str
    ours: Measured | str
    why: str = ""


class Series(NamedTuple):
    """Points under one name; of bars, x are the categories."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float]


def reproduction(
    title: str, source: str, conditions: Mapping[str, str], parts: Sequence[DocumentSection], missing: Sequence[str]
) -> Document:
    """A whole reproduction; its command is not known yet.

    Args:
        title: of the page.
        source: the paper.
        conditions: what must be known before a number is believed, by name.
        parts: what was found.
        missing: what of the paper is not here, and why.
    """
    last = [DocumentSection(MISSING, items=missing)] if missing else []
    return Document(title, "", {"source": source, **conditions}, [*parts, *last])


def findings(
    title: str, text: str = "", rows: Sequence[ClaimRow] = (), grids: Sequence[Grid] = (), charts: Sequence[Chart] = ()
) -> DocumentSection:
    """A part with its claims on top."""
    return DocumentSection(title, text, [*([Grid("", HEADINGS, rows)] if rows else []), *grids], charts)


def claims(part: DocumentSection) -> list[ClaimRow]:
    """The claims of a part."""
    return [row for grid in part.grids for row in grid.rows if isinstance(row, ClaimRow)]


def drawing(
    key: str,
    title: str,
    caption: str,
    labels: tuple[str, str],
    series: Sequence[Series],
    *,
    kind: Literal["lines", "bars"] = "lines",
    log_x: bool = False,
    percent_y: bool = False,
) -> Chart:
    """A figure: lines over a number, or groups of bars over categories; some of its points as its table."""
    figure = go.Figure()
    for index, each in enumerate(series):
        add_series(figure, each, kind, index)
    figure.update_layout(xaxis_title=labels[0], yaxis_title=labels[1])
    figure.update_xaxes(type="log" if log_x else None)
    figure.update_yaxes(tickformat=".0%" if percent_y else None)
    rows = [[each.name, some_points(each)] for each in series]
    return Chart(key, title, caption, figure, ("series", "points (x: y)"), rows)


def add_series(figure: go.Figure, series: Series, kind: Literal["lines", "bars"], index: int) -> None:
    colour, dash, _ = look(index)
    values = {"x": list(series.x), "y": list(series.y), "name": series.name}
    if kind == "bars":
        figure.add_bar(**values, marker={"color": colour})
    else:
        figure.add_scatter(**values, mode="lines", line={"color": colour, "dash": dash, "width": 2})


def some_points(series: Series) -> str:
    pairs = list(zip(series.x, series.y, strict=True))
    step = max(1, -(-len(pairs) // 10))
    return ", ".join(f"{x if isinstance(x, str) else number(x)}: {number(y)}" for x, y in pairs[::step])
