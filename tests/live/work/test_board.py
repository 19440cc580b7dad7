"""How far long work is: pace, table, curves, and the lines of a terminal."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from polyrhythm.live.work.bar import WorkBar, picture
from polyrhythm.live.work.board import KEPT_POINTS, KEPT_ROWS, WorkBoard


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_done_before_the_stage_is_no_pace() -> None:
    clock = Clock()
    board = WorkBoard("search", clock=clock)
    board.begin("trials", total=10, done=6)
    assert board.view().remaining_s is None
    clock.now_s = 8.0
    board.advance(8)
    assert board.view().remaining_s == 8.0
    clock.now_s = 11.0
    assert board.view().remaining_s == 5.0
    clock.now_s = 100.0
    assert board.view().remaining_s == 0.0


@given(
    pieces=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), max_size=30), total=st.none() | st.integers(0, 9)
)
def test_no_order_makes_an_impossible_time(pieces: list[tuple[float, int]], total: int | None) -> None:
    clock = Clock()
    board = WorkBoard("work", clock=clock)
    board.begin("pieces", total)
    for elapsed_s, done in pieces:
        clock.now_s += elapsed_s
        board.advance(done)
        remaining_s = board.view().remaining_s
        assert remaining_s is None or remaining_s >= 0.0


def test_rows_and_points_are_bounded_and_the_latest_stay() -> None:
    board = WorkBoard("learn")
    for number in range(3000):
        board.row(str(number))
        board.point("loss", number, 1.0)
    view = board.view()
    assert (len(view.rows), view.rows[-1]) == (KEPT_ROWS, ("2999",))
    assert len(view.curves["loss"]) <= KEPT_POINTS
    assert [view.curves["loss"][end][0] for end in (0, -1)] == [0, 2999]


def drawn(board: WorkBoard) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(picture(board.view()))
    return out.getvalue().splitlines()


def test_a_terminal_shows_what_is_known() -> None:
    clock = Clock()
    board = WorkBoard("compare", clock=clock)
    assert "compare" in drawn(board)[0]
    board.begin("runs", total=4)
    clock.now_s = 60.0
    board.advance(2, now="[red]evil[/red], " * 10, best="ssp:3")
    lines = drawn(board)
    assert "2/4, 1 min 0 s, about 1 min 0 s left" in lines[0]
    assert lines[1].startswith("now: [red]evil[/red]")
    assert lines[2].strip() == "best so far: ssp:3"
    assert max(map(len, lines)) <= 80


def test_where_there_is_no_terminal_nothing_is_shown() -> None:
    out = io.StringIO()
    with WorkBar(WorkBoard("compare"), Console(file=out)):
        pass
    assert out.getvalue() == ""
