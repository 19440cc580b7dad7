"""Long work in a terminal: a bar with the time that remains, what runs now, and the best so far."""

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polyrhythm.live.work.board import WorkBoard, WorkView
from polyrhythm.telemetry.numbers import duration

WIDTH = 24
"""Columns of the bar."""


class WorkBar:
    """Shows a board on stderr four times a second while it is entered, and nothing where that is no terminal."""

    def __init__(self, board: WorkBoard, console: Console | None = None) -> None:
        self._board = board
        stderr = console or Console(stderr=True)
        self._live = Live(get_renderable=self._picture, console=stderr, transient=True) if stderr.is_terminal else None

    def __enter__(self) -> "WorkBar":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self) -> Group:
        return picture(self._board.view())


def picture(view: WorkView) -> Group:
    """Three lines at most."""
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(view.total, view.done, width=WIDTH)
    line.add_row(short(view.stage or view.title), bar, short(sums(view)))
    told = [("now", view.now), ("best so far", view.best)]
    return Group(line, *(short(f"{name}: {text}", "dim") for name, text in told if text))


def short(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def sums(view: WorkView) -> str:
    """How much is done, how long it has taken, and how long the rest will take.

    >>> board = WorkBoard("compare", clock=lambda: 0.0)
    >>> board.begin("runs", total=8)
    >>> sums(board.view())
    '0/8, 0 s'
    """
    count = f"{view.done}/{view.total}" if view.total is not None else str(view.done)
    left = f", about {whole(view.remaining_s)} left" if view.remaining_s is not None else ""
    return f"{count}, {whole(view.time_s)}{left}"


def whole(time_s: float) -> str:
    return duration(round(time_s)) if time_s >= 1 else "0 s"
