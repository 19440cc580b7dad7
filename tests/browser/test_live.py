"""The live page in a real browser: a job that is switched by a click, and what holds of the page while it runs."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from polyrhythm.live.work.board import WorkBoard
from polyrhythm.live.work.page import WorkPage
from tests.live.jobs import Followed, followed, watcher_of


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    report = tmp_path_factory.mktemp("live") / "kept.html"
    with followed(report.parent, "--policy", "asp", "--ui", "--report", str(report), workers=4) as running:
        yield running


@pytest.fixture
def page(browser: Chrome, job: Followed) -> Chrome:
    """The browser with the page, once it shows the running job."""
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    browser.get_log("performance")  # type: ignore[no-untyped-call]
    browser.get(job.page)
    wait(browser, "return document.documentElement.dataset.state === 'running' && looks.length > 2")
    return browser


def js(browser: Chrome, script: str, *arguments: object) -> Any:
    return browser.execute_script(script, *arguments)


def wait(browser: Chrome, script: str) -> None:
    WebDriverWait(browser, 120).until(lambda b: js(b, script))


def test_a_job_is_switched_by_a_click(page: Chrome) -> None:
    page.find_element(By.ID, "policy").send_keys("ssp:4")
    page.find_element(By.ID, "switch").click()
    assert "from asp to ssp:4" in page.find_element(By.ID, "question").text
    page.find_element(By.ID, "no").click()
    assert page.find_element(By.ID, "said").text == ""
    page.find_element(By.ID, "policy").send_keys(Keys.ENTER)
    page.find_element(By.ID, "yes").click()
    wait(page, "return document.documentElement.dataset.policy === 'ssp:4'")
    wait(page, "return document.getElementById('events').textContent.includes('asks to switch to ssp:4')")
    assert "Done: switching to ssp:4" in page.find_element(By.ID, "said").text


def test_what_is_wrong_is_said(page: Chrome) -> None:
    page.find_element(By.ID, "policy").send_keys("<img src=x onerror=document.title=1>")
    page.find_element(By.ID, "switch").click()
    assert "<img" in page.find_element(By.ID, "question").text
    page.find_element(By.ID, "yes").click()
    wait(page, "return document.getElementById('said').textContent.startsWith('Not done:')")
    assert "·" in page.title


def test_the_timeline_is_drawn_and_moves(page: Chrome) -> None:
    wait(page, "return looks.some((frame) => frame.stretches.length >= 3)")
    before = js(page, "return document.getElementById('timeline').toDataURL()")
    wait(page, f"return document.getElementById('timeline').toDataURL() !== {json.dumps(before)}")
    assert "worker 2 computes" in js(page, "return document.getElementById('timeline').ariaLabel")
    rows = page.find_elements(By.CSS_SELECTOR, "#workers tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("width", [400, 3840])
def test_it_fits(page: Chrome, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        wait(page, f"return innerWidth === {width}")
        assert js(page, "return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_light_and_dark(page: Chrome) -> None:
    before = js(page, "return getComputedStyle(document.body).backgroundColor")
    page.find_element(By.ID, "theme").click()
    after = js(page, "return getComputedStyle(document.body).backgroundColor")
    assert {before, after} == {"rgb(255, 255, 255)", "rgb(20, 23, 28)"}


def test_everything_has_a_name(page: Chrome) -> None:
    nameless = js(
        page,
        "return [...document.querySelectorAll('button, input, a, canvas, progress')].filter((e) =>"
        "!(e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim())"
        ").filter((e) => e.id !== 'yes').map((e) => e.outerHTML)",
    )
    assert nameless == []


def test_it_asks_its_own_host_only_and_nothing_goes_wrong(page: Chrome, job: Followed) -> None:
    wait(page, "return looks.length > 3")
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]  # type: ignore[no-untyped-call]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith(("data:", job.page))} == set()
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


def heap(browser: Chrome) -> int:
    """Bytes of the page's heap once all garbage is gone."""
    browser.execute_cdp_cmd("HeapProfiler.enable", {})
    for _ in range(3):
        browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    return int(browser.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"])


UPDATES = """
const number = last, view0 = structuredClone(view), shown = looks;
const frame = { ...structuredClone(looks[looks.length - 1]), figures: { accuracy: 0.5 } };
frame.stretches = [0, 1, 2].map((rank) => [rank, frame.time_s - 0.5, frame.time_s, 0.5, 0.2]);
for (let n = 0; n < arguments[0]; n += 1) {
  const text = JSON.stringify({ view: view0, frames: [{ ...frame, number: last + 1 }] });
  take(JSON.parse(text));
  show();
}
const count = document.getElementsByTagName('*').length;
last = number;
looks = shown;
return count;
"""
"""So many answers as the server gives them, shown one after the other."""


def test_60_seconds_of_updates_do_not_grow_its_memory(page: Chrome) -> None:
    wait(page, "return looks.length > 3")
    js(page, UPDATES, 320)  # more than it keeps
    before = heap(page)
    # Both in one call: the job goes on between two, and its events are nodes.
    fewer, more = js(page, f"const update = function () {{{UPDATES}}};\nreturn [update(320), update(440)];")
    assert more == fewer
    grown = heap(page) - before
    assert grown < 256 * 1024, f"{grown} bytes more after 60 s of two updates a second"


def test_after_the_server_was_away_it_goes_on(page: Chrome, job: Followed) -> None:
    watcher = watcher_of(job.process.pid)
    os.kill(watcher, signal.SIGSTOP)
    try:
        wait(page, "return document.documentElement.dataset.state === 'lost'")
        assert "trying again" in page.find_element(By.ID, "condition").text
        assert not page.find_element(By.ID, "switch").is_enabled()
    finally:
        os.kill(watcher, signal.SIGCONT)
    wait(page, "return document.documentElement.dataset.state === 'running'")


MANY = """
const count = arguments[0], worker = view.workers[0];
const workers = Array.from({ length: count }, (_, rank) => ({ ...worker, rank, late: rank === 7 ? 2.5 : null }));
const stretches = workers.map(({ rank }) => [rank, view.time_s - 20, view.time_s - 1, 0.5, 0.1]);
const frame = { ...looks[looks.length - 1], stretches };
drawTimeline(document.getElementById('timeline'), { ...view, workers }, [frame]);
showWorkers({ ...view, workers });
const box = document.querySelector('.scroll.tall'), tall = document.getElementById('timeline').clientHeight;
const found = [document.querySelectorAll('#workers tbody tr').length, tall, box.clientHeight <= innerHeight];
show();
return found;
"""


@pytest.mark.parametrize("workers", [8, 256])
def test_many_workers_fit(page: Chrome, workers: int) -> None:
    rows, tall, fits = js(page, MANY, workers)
    assert (rows, fits) == (workers, True)
    assert 8 * 8 <= tall <= 900


def test_specs_are_completed_as_in_a_terminal(page: Chrome) -> None:
    field = page.find_element(By.ID, "policy")
    field.clear()
    field.send_keys("dssp:")
    wait(page, "return [...document.getElementById('policies').options].some((o) => o.value === 'dssp:s_low=3')")
    field.clear()


def test_what_stands_out_is_said(page: Chrome) -> None:
    wait(page, "return document.getElementById('verdict').textContent !== 'Too little is known yet.'")
    assert page.find_element(By.ID, "next-step").text


def test_its_nodes_do_not_grow(page: Chrome) -> None:
    wait(page, "return looks.length > 3")
    counted = js(
        page,
        "const view0 = structuredClone(view), number = last;"
        "const count = () => document.getElementsByTagName('*').length;"
        "const frame = { ...structuredClone(looks[looks.length - 1]), stretches: [] };"
        "const look = (n) => { take({ view: view0, frames: [{ ...frame, number: last + 1 }] }); show(); };"
        "look(); const before = count();"
        "for (let n = 0; n < 1000; n += 1) look();"
        "const found = [before, count(), looks.length]; last = number; looks = []; return found;",
    )
    assert counted[0] == counted[1]
    assert counted[2] == 300


def test_workers_are_drained_and_killed_by_clicks_and_the_end_stays_readable(page: Chrome, job: Followed) -> None:
    for how, left in (("Drain rank 3", 3), ("Kill rank 2", 2)):
        page.find_element(By.CSS_SELECTOR, f"[aria-label='{how}']").click()
        assert how in page.find_element(By.ID, "question").text
        page.find_element(By.ID, "yes").click()
        wait(page, f"return document.querySelectorAll('#workers tbody tr').length === {left}")
    wait(page, "return document.getElementById('events').textContent.includes('rank 3 left early')")
    job.end()
    wait(page, "return document.documentElement.dataset.state !== 'running'")
    assert js(page, "return document.querySelectorAll('#workers tbody tr').length") == 2
    kept = job.folder / "kept.html"
    page.get(kept.as_uri())
    wait(page, "return document.documentElement.dataset.state === 'ended'")
    assert "finished" in page.find_element(By.ID, "condition").text
    assert page.find_elements(By.ID, "controls") == []


def test_long_work_is_shown_and_its_names_are_text(browser: Chrome) -> None:
    evil = "<img src=x onerror=document.title=1>"
    board = WorkBoard(f"search on {evil}", evil, ("candidate", "verdict"))
    board.begin("trials", 4)
    board.advance(1, now=evil, best="asp")
    for verdict in ("refused", "accepted"):
        board.row(evil, verdict)
    for x in range(3):
        board.point("returns", x, x)
    page = WorkPage(board)
    page.start()
    try:
        browser.get(page.address)
        wait(browser, "return document.querySelectorAll('#rows tbody tr').length === 2")
        assert "1 of 4" in browser.find_element(By.ID, "figures").text
        assert browser.find_element(By.CSS_SELECTOR, "#curves figcaption").text == "returns"
        board.end("interrupted")
        wait(browser, "return document.documentElement.dataset.state === 'ended'")
    finally:
        page.stop()
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert "·" in browser.title
