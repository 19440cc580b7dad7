"""Long work as a page: it answers whoever knows the key, and shows names as text."""

import json
import re
from collections.abc import Iterator

import pytest

from polyrhythm.live.pages import asset, work_page
from polyrhythm.live.work.board import WorkBoard
from polyrhythm.live.work.page import WorkPage
from tests.live.jobs import fetch

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def board() -> WorkBoard:
    board = WorkBoard(EVIL, f"search {EVIL}", ("candidate", "verdict"))
    board.begin("trials", 4)
    board.advance(1, now=EVIL, best=EVIL)
    board.row(EVIL, "refused")
    board.point("returns", 1, 0.5)
    return board


@pytest.fixture
def page(board: WorkBoard) -> Iterator[WorkPage]:
    page = WorkPage(board)
    page.start()
    yield page
    page.stop()


def test_it_answers_with_the_key_only(page: WorkPage) -> None:
    status, text = fetch(page.address)
    assert (status, EVIL in text) == (200, False)
    assert fetch(page.address.rsplit("/", 2)[0] + "/state")[0] == 403
    assert fetch(f"{page.address}state", Origin="http://elsewhere.example")[0] == 403
    assert fetch(f"{page.address}work.js")[1] == asset("work.js")
    state = json.loads(fetch(f"{page.address}state")[1])["view"]
    assert (state["rows"], state["curves"]) == ([[EVIL, "refused"]], {"returns": [[1, 0.5]]})


def test_what_is_kept_is_text_and_loads_nothing(board: WorkBoard) -> None:
    kept = work_page(board.view(), saved=True)
    assert EVIL not in kept
    assert not re.search(r"(?:src|href)=\"(?!data:)", kept)
    data = re.search(r'<script type="application/json" id="kept">(.*?)</script>', kept, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["view"]["title"] == EVIL


def test_nothing_is_ever_set_as_markup() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", asset("work.js"))
