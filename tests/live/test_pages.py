"""The page as text: names are text, and what is kept needs nothing else."""

import json
import re

from polyrhythm.live.history import JobHistory
from polyrhythm.live.model import view_of
from polyrhythm.live.pages import asset, live_page, saved_page, work_page
from polyrhythm.live.work.board import WorkBoard
from tests.live.statuses import event, status

EVIL = "</script><img src=x onerror=alert(1)>"


def test_names_are_text() -> None:
    assert EVIL not in live_page(EVIL)
    view = view_of(status(job=EVIL, policy=EVIL, events=(event(1, text=EVIL),)))
    assert EVIL not in saved_page(EVIL, view, [])


def test_nothing_is_ever_set_as_markup() -> None:
    script = asset("page.js")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_what_is_kept_holds_its_data_and_loads_nothing() -> None:
    history = JobHistory()
    history.see(status(1.0, 5))
    history.see(status(2.0, 9, loss=float("nan"), ended="finished"))
    page = saved_page("fruit", history.view, history.after(0))
    kept = re.search(r'<script type="application/json" id="kept">(.*?)</script>', page, re.DOTALL)
    assert kept is not None
    data = json.loads(kept[1])
    assert (data["view"]["ended"], data["view"]["loss"], len(data["frames"])) == ("finished", None, 2)
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert 'id="controls"' not in page


def test_the_live_page_asks_its_own_host_only() -> None:
    page = live_page("fruit") + asset("page.css") + asset("page.js")
    assert not re.search(r"https?://", page)
    assert 'option value="ssp"' in page


def test_without_script_a_page_says_where_else_to_look() -> None:
    said = "<noscript><p>This page needs JavaScript, which is off here. In a terminal: polyrhythm top JOB"
    assert said in live_page("fruit")
    assert said in saved_page("fruit", view_of(status()), [])
    assert "off here. The terminal shows the same.</p>" in work_page(WorkBoard("search").view(), False)
