"""Tables and progress in a terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from polyrhythm.report.cells import cells, headings
from polyrhythm.report.facts import facts, target_of
from polyrhythm.report.table import rows
from polyrhythm.telemetry.result import RunResult

FILE_WIDTH = 1000
"""Columns where there is no terminal: wide enough to break no line."""


def console() -> Console:
    """Standard output; a file is not broken into the width of a terminal."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=FILE_WIDTH)


def print_table(heads: Sequence[str], body: Iterable[Sequence[str]], numeric: bool) -> None:
    """A table; all columns but the first are aligned to the right if they are figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, head in enumerate(heads):
        figures = numeric and position > 0
        table.add_column(head, justify="right" if figures else "left", no_wrap=figures, overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def print_results(results: Sequence[RunResult]) -> None:
    """The conditions, and one row a policy."""
    said = facts(results)
    width = max(map(len, said))
    for name, value in said.items():
        console().print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
    has_target = target_of(results) is not None
    print_table(headings(has_target), cells(rows(results), has_target), numeric=True)


def runs_progress() -> Progress:
    """A bar that counts runs; silent when stderr is not a terminal."""
    return bar(MofNCompleteColumn())


def share_progress() -> Progress:
    """A bar for the share of one run; silent when stderr is not a terminal."""
    return bar(TaskProgressColumn())


def bar(amount: MofNCompleteColumn | TaskProgressColumn) -> Progress:
    """A bar on stderr that vanishes when it is complete."""
    stderr = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    return Progress(*parts, console=stderr, disable=not stderr.is_terminal, transient=True)
