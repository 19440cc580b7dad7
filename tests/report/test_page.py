import json
import re
from html.parser import HTMLParser

import pytest

from polyrhythm.core import Trace
from polyrhythm.report.document import embedded
from polyrhythm.report.page import Comparison, render
from polyrhythm.report.timeline import Timeline
from tests.report.results import result

COMMAND = "polyrhythm compare 'a&b.toml' --policies bsp,asp"


@pytest.fixture
def comparison(bsp_trace: Trace) -> Comparison:
    results = [result(policy, seed) for policy in ("bsp", "asp") for seed in range(2)]
    lost = result("asp", 2, status="diverged", message="the loss is <nan>")
    return Comparison(COMMAND, 'name = "</script><b>"', [*results, lost], [Timeline.of(bsp_trace)])


class Links(HTMLParser):
    """Collects every address that a browser would load, and every id."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")


def test_the_page_loads_nothing(comparison: Comparison) -> None:
    links = Links()
    links.feed(render(comparison))
    assert links.addresses == ["data:,"]
    assert len(set(links.ids)) == len(links.ids)


def test_every_chart_has_a_place_a_description_and_data(comparison: Comparison) -> None:
    page = render(comparison)
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert data is not None
    charts = json.loads(data[1])
    assert list(charts)[:5] == ["accuracy-time", "accuracy-samples", "loss-time", "loss-samples", "timeline"]
    for key, chart in charts.items():
        assert chart["data"]
        assert re.search(rf'id="{key}" role="img" aria-label="[^"]+"', page)


def test_conditions_table_scenario_and_troubles_are_there_and_escaped(comparison: Comparison) -> None:
    page = render(comparison)
    assert "polyrhythm compare &#39;a&amp;b.toml&#39; --policies bsp,asp" in page
    assert "name = &#34;&lt;/script&gt;&lt;b&gt;&#34;" in page
    assert "asp, seed 2: diverged: the loss is &lt;nan&gt;" in page
    assert "linear: 0.1 for one mini-batch" in page
    assert page.index("</span>bsp") < page.index("</span>asp (1 of 3 failed)")


def test_a_page_of_failures_only_still_has_its_table() -> None:
    page = render(Comparison(COMMAND, "", [result(status="failed", message="no", curve=[])]))
    assert "bsp (1 of 1 failed)" in page
    assert 'class="figure"' not in page


def test_equal_input_gives_an_equal_page_of_a_bounded_size(comparison: Comparison) -> None:
    page = render(comparison)
    assert page == render(comparison)
    assert len(page) < 8_000_000


def test_data_cannot_end_the_script_element() -> None:
    text = embedded({"name": "</script>"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script>"}
