"""Figures as static pictures."""

import re
from xml.etree import ElementTree as ET

import plotly.graph_objects as go
import pytest

from polyrhythm.core import Trace
from polyrhythm.errors import PolyrhythmError
from polyrhythm.report.picture import check_pictures, drawn, svg
from polyrhythm.report.timeline import Timeline
from polyrhythm.report.timeline_figure import timeline_svg
from polyrhythm.report.tradeoff_figure import GOOD, OTHER, Point, tradeoff_figure

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str | None]:
    return [element.text for element in ET.fromstring(picture).iter(f"{SVG}text")]


def strokes(picture: str, colour: str) -> list[str]:
    """What is drawn of the paths of one colour."""
    return [
        path.get("d", "")
        for path in ET.fromstring(picture).iter(f"{SVG}path")
        if f"stroke: {colour.lower()}" in path.get("style", "") and path.get("clip-path")
    ]


def test_a_timeline_has_rows_titles_a_legend_and_an_accessible_name(bsp_trace: Trace) -> None:
    timeline = Timeline.of(bsp_trace)
    picture = timeline_svg([timeline, timeline], ["BSP & more", "again"])
    found = texts(picture)
    assert found.count("worker 0") == 2
    assert {"BSP & more", "again"} < set(found)
    assert found[-3:] == ["computes", "transfers", "waits"]
    root = ET.fromstring(picture)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Who ran and who waited under BSP & more, again"


def test_bars_stand_where_their_spans_are(bsp_trace: Trace) -> None:
    computing, *_ = strokes(timeline_svg([Timeline.of(bsp_trace)]), "#0072B2")
    # 660 pixels are 6 s, so worker 0 computes from 84 to 194 and a gap parts the bar from what follows.
    assert re.match(r"M 84 43\S*\s+L 193\.34 43", computing)
    assert computing.count("M") == 6


def test_equal_input_gives_equal_bytes(bsp_trace: Trace, cancelling_trace: Trace) -> None:
    timelines = [Timeline.of(bsp_trace), Timeline.of(cancelling_trace)]
    assert timeline_svg(timelines) == timeline_svg(timelines)
    assert "computes in vain" in timeline_svg(timelines)


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show() -> None:
    figure = go.Figure(layout={"xaxis": {"type": "log"}, "yaxis": {"tickformat": ".0%"}})
    figure.add_scatter(x=(0.0, 1.0, 10.0, 1000.0, 2000.0), y=(1, 1, 2, 1, float("nan")), line={"color": OTHER})
    picture = svg(figure, "t")
    (line,) = strokes(picture, OTHER)
    left, middle, right = (float(x) for x in re.findall(r"[ML] (\S+)", line))
    assert right - middle == pytest.approx(2 * (middle - left), abs=0.01)
    assert {"1", "10", "1,000", "100 %"} < set(texts(picture))


def test_bars_stand_on_the_axis_and_names_are_escaped() -> None:
    figure = go.Figure()
    for name, height in {"one": 1.0, "two & more": 0.5}.items():
        figure.add_bar(x=["a&b"], y=[height], name=name, marker={"color": OTHER})
    (plot,) = drawn(figure).axes
    assert [(bar.get_y(), bar.get_height()) for bar in plot.patches] == [(0, 1.0), (0, 0.5)]  # type: ignore[attr-defined]
    assert {"a&b", "two & more"} < set(texts(svg(figure, "<t>")))


def test_a_setting_is_a_circle_or_a_square_coloured_by_success() -> None:
    points = [Point(5.0, 0.99, "3, 3", False), Point(2.0, 0.5, "0, 1", True)]
    figure = tradeoff_figure([("a < b", points)])
    marks = {trace.marker.symbol: (trace.marker.color, trace.x, trace.y) for trace in figure.data}
    assert marks == {"circle": (GOOD, (5.0,), (0.99,)), "square": (OTHER, (2.0,), (0.5,))}
    found = texts(svg(figure, "t"))
    assert {"a < b", "3, 3", "0, 1", "recurring job"} < set(found)


def test_without_matplotlib_there_is_a_line_of_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.report.picture.find_spec", lambda _: None)
    with pytest.raises(
        PolyrhythmError, match=r"--timeline needs matplotlib; run: pip install 'polyrhythm\[pictures\]'"
    ):
        check_pictures("--timeline")
