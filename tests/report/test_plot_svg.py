"""Static pictures of lines and bars."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.report.plot_svg import Line, Scale, bars_svg, lines_svg, round_step

NUMBER = st.floats(-1e9, 1e9, allow_subnormal=False)


def polylines(svg: str) -> list[list[tuple[float, float]]]:
    root = ElementTree.fromstring(svg)
    found = [each.attrib["points"] for each in root.iter() if each.tag.endswith("polyline")]
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in found]


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=20))
def test_every_point_is_inside_the_picture(points: list[tuple[float, float]]) -> None:
    xs, ys = zip(*points, strict=True)
    (line,) = polylines(lines_svg("t", ("x", "y"), [Line("a", xs, ys)]))
    assert len(line) == len(points)
    assert all(64 <= x <= 748 and 10 <= y <= 270 for x, y in line)


def test_a_logarithmic_scale_leaves_out_what_it_cannot_show() -> None:
    (line,) = polylines(
        lines_svg("t", ("x", "y"), [Line("a", (0.0, 1.0, 10.0, 100.0), (1, 1, 2, float("nan")))], log_x=True)
    )
    assert [x for x, _ in line] == [64.0, 748.0]


def test_decades_are_equally_wide() -> None:
    scale = Scale(1.0, 100.0, 0.0, 10.0, log=True)
    assert [scale(tick) for tick in scale.ticks] == pytest.approx([0.0, 5.0, 10.0])


def test_bars_stand_on_the_axis_and_names_are_escaped() -> None:
    svg = bars_svg("<t>", ("", "y"), ["a&b"], [Line("one", (0,), (1.0,)), Line("two", (0,), (0.5,))])
    bars = [each.attrib for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("rect")]
    assert [float(bar["y"]) + float(bar["height"]) for bar in bars] == pytest.approx([270.0, 270.0])
    assert float(bars[0]["height"]) == pytest.approx(2 * float(bars[1]["height"]), abs=0.2)


@given(st.floats(1e-12, 1e12))
def test_ticks_are_never_closer_than_asked(least: float) -> None:
    assert least * (1 - 1e-6) <= round_step(least) <= least * 10.01
