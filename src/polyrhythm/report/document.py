"""Sections of text, tables and figures as one HTML page that needs nothing but itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from polyrhythm import __version__
from polyrhythm.report.figures import Chart
from polyrhythm.report.page import embedded, styled


@dataclass(frozen=True)
class Grid:
    """A table."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class DocumentSection:
    """A heading and what stands below it."""

    title: str
    text: str = ""
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True)
class Document:
    """A page.

    Args:
        title: of the page.
        command: the exact command that made it.
        facts: conditions by name.
        parts: in order; the keys of their charts differ.
    """

    title: str
    command: str
    facts: Mapping[str, str]
    parts: Sequence[DocumentSection]


def render_document(document: Document) -> str:
    """The page."""
    charts = [chart for part in document.parts for chart in part.charts]
    environment = Environment(
        loader=PackageLoader("polyrhythm.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("document.html.j2").render(
        version=__version__,
        document=document,
        charts_json=embedded({chart.key: styled(chart) for chart in charts}),
        plotly=get_plotlyjs(),
    )
