"""The page in a real browser: it draws, zooms, changes its theme, and asks for nothing but itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from typer.testing import CliRunner

from polyrhythm.cli.app import app

CURVES = {"accuracy-time", "accuracy-samples", "loss-time", "loss-samples"}
POLICIES = ("bsp", "asp", "k-sync:6")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of the report of a short real comparison."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    words = ["compare", "stragglers-moderate", "--policies", ",".join(POLICIES), "--seeds", "2", "--jobs", "1"]
    words += ["--set", "training.samples=20000", "--report", str(path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return path.as_uri()


@pytest.fixture
def report(browser: Chrome, page: str) -> Chrome:
    """The browser with the page freshly drawn."""
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    browser.get_log("performance")  # type: ignore[no-untyped-call]
    browser.get(page)
    WebDriverWait(browser, 60).until(lambda b: js(b, "return document.documentElement.dataset.drawn") == "yes")
    return browser


def js(browser: Chrome, script: str, *arguments: object) -> Any:
    return browser.execute_script(script, *arguments)


def shown_range(browser: Chrome) -> tuple[float, float]:
    """What part of the time axis the timeline shows."""
    low, high = js(browser, "return document.getElementById('timeline')._fullLayout.xaxis.range")
    return low, high


def test_every_figure_is_drawn_with_data(report: Chrome) -> None:
    figures = report.find_elements(By.CSS_SELECTOR, ".figure")
    assert {figure.get_attribute("id") for figure in figures} == CURVES | {
        "overview",
        "timeline",
        "arrivals",
        "staleness",
        "bytes",
    }
    for figure in figures:
        assert figure.size["height"] > 100
        marks = figure.find_elements(By.CSS_SELECTOR, ".scatterlayer path[d], .barlayer path[d], .heatmaplayer image")
        assert len(marks) >= len(POLICIES)
        assert figure.get_attribute("aria-label")


def test_each_policy_has_one_colour_in_table_and_curves(report: Chrome) -> None:
    swatches = js(
        report,
        "return Object.fromEntries([...document.querySelectorAll('tbody .swatch')].map("
        "s => [s.parentElement.textContent.trim(), getComputedStyle(s).borderTopColor]))",
    )
    lines = js(
        report,
        "return Object.fromEntries([...document.querySelectorAll('#accuracy-time .legend .traces')].map("
        "t => [t.textContent.trim(), getComputedStyle(t.querySelector('.legendlines path')).stroke]))",
    )
    assert set(swatches) == set(POLICIES)
    assert swatches == lines


def test_the_timeline_zooms_for_all_policies_at_once_and_back(report: Chrome) -> None:
    before = shown_range(report)
    plot = report.find_element(By.CSS_SELECTOR, "#timeline .nsewdrag")
    js(report, "arguments[0].scrollIntoView({block: 'center'})", plot)
    drag = ActionChains(report).move_to_element_with_offset(plot, -200, 0).click_and_hold()
    drag.move_by_offset(150, 0).move_by_offset(50, 0).release().perform()
    WebDriverWait(report, 60).until(lambda b: shown_range(b) != before)
    low, high = shown_range(report)
    assert before[0] < low < high < before[1]
    assert shown_range(report) == tuple(
        js(report, "return document.getElementById('timeline')._fullLayout.xaxis2.range")
    )
    # Not by a double click, which a busy machine may take for two single ones.
    js(report, "document.querySelector('#timeline .modebar-btn[data-title=\"Reset axes\"]').click()")
    WebDriverWait(report, 60).until(lambda b: shown_range(b) == before)


def test_the_button_changes_page_and_figures(report: Chrome) -> None:
    def colours() -> tuple[str, str, str]:
        axis = js(report, "return document.getElementById('bytes')._fullLayout.xaxis.gridcolor")
        text = js(report, "return getComputedStyle(document.querySelector('#bytes .xtick text')).fill")
        return js(report, "return getComputedStyle(document.body).backgroundColor"), axis, text

    before = colours()
    report.find_element(By.ID, "theme").click()
    WebDriverWait(report, 60).until(lambda _: all(a != b for a, b in zip(before, colours(), strict=True)))
    assert {before[0], colours()[0]} == {"rgb(255, 255, 255)", "rgb(20, 23, 28)"}


def test_the_page_follows_the_system(report: Chrome) -> None:
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        WebDriverWait(report, 60).until(lambda b: js(b, "return document.documentElement.dataset.theme") == scheme)  # noqa: B023


def test_nothing_is_loaded_and_nothing_goes_wrong(report: Chrome, page: str) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in report.get_log("performance")]  # type: ignore[no-untyped-call]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [page]
    assert report.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_it_fits_a_phone(report: Chrome) -> None:
    size = report.get_window_size()
    try:
        report.set_window_size(500, 900)
        WebDriverWait(report, 60).until(lambda b: js(b, "return innerWidth") <= 520)
        assert js(report, "return document.documentElement.scrollWidth <= innerWidth")
    finally:
        report.set_window_size(size["width"], size["height"])
