"""The numbers of a reproduction as JSON, without how they are written."""

from typing import Any

import msgspec

from polyrhythm import __version__
from polyrhythm.report.document import Document, DocumentSection
from polyrhythm.report.figures import Chart
from polyrhythm_experiments.reproduce.page import MISSING, claims


def as_json(name: str, page: Document) -> str:
    """The page's values."""
    conditions = dict(page.facts)
    values = {
        "name": name,
        "title": page.title,
        "source": conditions.pop("source"),
        "conditions": conditions,
        "sections": [part_values(part) for part in page.parts if part.title != MISSING],
        "missing": [line for part in page.parts if part.title == MISSING for line in part.items],
    }
    encoded = msgspec.json.encode({"command": page.command, "version": __version__, "page": values}, enc_hook=name_of)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def part_values(part: DocumentSection) -> dict[str, Any]:
    """Claims, tables and figures."""
    rows = claims(part)
    tables = part.grids[1:] if rows else part.grids
    return {
        "title": part.title,
        "text": part.text,
        "rows": [row._asdict() for row in rows],
        "tables": [{"title": grid.title, "headings": grid.headings, "rows": grid.rows} for grid in tables],
        "plots": [plot_values(chart) for chart in part.charts],
    }


def plot_values(chart: Chart) -> dict[str, Any]:
    """The points of a figure."""
    x, y = chart.figure.layout.xaxis, chart.figure.layout.yaxis
    return {
        "key": chart.key,
        "title": chart.title,
        "caption": chart.description,
        "x_label": x.title.text,
        "y_label": y.title.text,
        "series": [{"name": trace.name, "x": trace.x, "y": trace.y} for trace in chart.figure.data],
        "kind": "bars" if chart.figure.data[0].type == "bar" else "lines",
        "log_x": x.type == "log",
        "percent_y": y.tickformat is not None,
    }


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value))
