from xml.etree import ElementTree as ET

from polyrhythm.core import Trace
from polyrhythm.report.timeline import Timeline
from polyrhythm.report.timeline_svg import timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_rows_titles_legend_and_an_accessible_name(bsp_trace: Trace) -> None:
    timeline = Timeline.of(bsp_trace)
    picture = ET.fromstring(timeline_svg([timeline, timeline], ["BSP & more", "again"]))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert texts.count("worker 0") == 2
    assert texts[0] == "BSP & more"
    assert texts[-3:] == ["computes", "transfers", "waits"]
    assert picture.get("role") == "img"
    assert picture.findtext(f"{SVG}title") == "Who ran and who waited under BSP & more, again"


def test_bars_stand_where_their_spans_are(bsp_trace: Trace) -> None:
    picture = ET.fromstring(timeline_svg([Timeline.of(bsp_trace)]))
    paths = [path.get("d", "") for path in picture.iter(f"{SVG}path") if path.get("fill")]
    # 678 pixels are 6 s, so worker 0 computes from 70 to 183 and a gap parts the bar from what follows.
    assert paths[0].startswith("M70.0 29H182.2v12H70.0z")
    assert [path.count("z") for path in paths] == [6, 4, 4]


def test_equal_input_gives_equal_bytes(bsp_trace: Trace, cancelling_trace: Trace) -> None:
    timelines = [Timeline.of(bsp_trace), Timeline.of(cancelling_trace)]
    assert timeline_svg(timelines) == timeline_svg(timelines)
    assert "computes in vain" in timeline_svg(timelines)
