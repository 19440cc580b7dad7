"""Tables and progress in a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from textwrap import fill

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from polyrhythm.early_end import early_end
from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.live.work.bar import WorkBar
from polyrhythm.live.work.board import WorkBoard
from polyrhythm.report.facts import facts, target_of
from polyrhythm.report.table import cells, headings, rows
from polyrhythm.telemetry.result import RunResult

FILE_WIDTH = 1000
"""Columns where there is no terminal: wide enough to break no line."""

HEAD_WIDTH = 10
"""Columns of a heading before it takes another line."""


def console(least: int = 0) -> Console:
    """Standard output, at least so wide: a terminal breaks lines that are too long, rich would drop columns."""
    plain = Console(highlight=False)
    return Console(highlight=False, width=max(least, plain.width if plain.is_terminal else FILE_WIDTH))


def print_texts(heads: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    table = blank_table()
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    console().print(table)


def print_figures(heads: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    """A table with names in the first column and figures in the others; no cell is folded."""
    table = blank_table()
    for position, head in enumerate(heads):
        lines = fill(head, HEAD_WIDTH, break_on_hyphens=False)
        table.add_column(lines, justify="right" if position else "left", vertical="bottom", no_wrap=True)
    for row in body:
        table.add_row(*map(Text, row))
    console(Measurement.get(console(FILE_WIDTH), console(FILE_WIDTH).options, table).maximum).print(table)


def blank_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def print_results(results: Sequence[RunResult]) -> None:
    said = facts(results)
    width = max(map(len, said))
    for name, value in said.items():
        console().print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
    has_target = target_of(results) is not None
    ranking = rows(results)
    print_figures(headings(ranking, has_target), cells(ranking, has_target))


@contextmanager
def long_work(title: str, command: str = "", heads: Sequence[str] = (), ui: bool = False) -> Iterator[WorkBoard]:
    """A board that is shown while the work goes on: as a bar on a terminal, and as a page if that is wanted."""
    board = WorkBoard(title, command, heads)
    with page_of(board) if ui else nullcontext(), WorkBar(board):
        try:
            with early_end.alone():
                yield board
        except BaseException as error:
            board.end(early_end.how if isinstance(error, KeyboardInterrupt) else str(error))
            raise
        board.end("finished")


@contextmanager
def page_of(board: WorkBoard) -> Iterator[None]:
    """A page about the work, at an address that is printed."""
    from polyrhythm.runtime.launch.watch import missing_modules

    if missing := missing_modules("ui"):
        raise UsageError(f"--ui needs {', '.join(missing)}; install with: pip install 'polyrhythm[ui]'")
    from polyrhythm.live.work.page import WorkPage

    page = WorkPage(board)
    page.start()
    say(f"page: {page.address}")
    try:
        yield
    finally:
        page.stop()
