"""The command that reproduces published results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrhythm.cli.group import ended_early
from polyrhythm.cli.options import MOST_SEEDS, On, TrialsOn, given_path, trials_on

if TYPE_CHECKING:
    from polyrhythm.live.work.board import WorkBoard


def reproduce(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The paper, such as esync; an unknown name lists all.")],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A tiny version on the embedded digits, to try it: its numbers mean nothing."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MOST_SEEDS, help="Repeat with this many seeds; 3 if not given, 1 if quick."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Has the data set's parquet files; downloaded if not given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=given_path, help="For page, figures and runs; reproduction-NAME if not given."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at a time; one a core if not given.")
    ] = None,
    on: On = TrialsOn.HERE,
) -> None:
    """Run a paper's tables and figures at the size of a laptop, and write the page.

    Ctrl-C or SIGTERM ends it; the runs that have finished are kept, and the same command goes on with them.
    """
    from polyrhythm.cli.terminal import long_work
    from polyrhythm_experiments.reproduce.papers import PaperRequest
    from polyrhythm_experiments.reproduce.papers import reproduce as write_page

    folder = out or Path(f"reproduction-{name}")
    counted: Counted | None = None
    try:
        with trials_on(on, jobs), long_work(f"reproduce {name}", ctx.obj) as board:
            counted = Counted(board)
            request = PaperRequest(name, folder, ctx.obj, quick, seeds, data, jobs or -1, counted.tell, counted.now)
            files = write_page(request)
    except KeyboardInterrupt:
        if counted is None:  # it has not begun
            raise
        kept = f": {counted.finished} finished runs are in {folder / 'runs'}; the same command goes on"
        raise ended_early(kept) from None
    for file in files:
        typer.echo(str(file))


class Counted:
    """Puts onto a board how far a reproduction is; each part of the paper is a stage, and finds some runs done."""

    def __init__(self, board: "WorkBoard") -> None:
        self._board, self._part, self._planned, self._done = board, 0, 0, 0
        self._before = 0

    @property
    def finished(self) -> int:
        """Runs of all parts, those that were found included."""
        return self._before + self._done

    def tell(self, finished: int, planned: int) -> None:
        if planned != self._planned or finished < self._done:
            self._before += self._done
            self._part, self._planned = self._part + 1, planned
            self._board.begin(f"part {self._part}, runs", planned, finished)
        self._done = finished
        self._board.advance(finished)

    def now(self, doing: str) -> None:
        self._board.advance(now=doing)
