"""The command that reproduces published results."""

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The paper, such as esync; an unknown name lists all.")],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A tiny version on the embedded digits, to try it: its numbers mean nothing."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Repeat with this many seeds; 3 if not given, 1 if quick.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Has the data set's parquet files; downloaded if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For page, figures and runs; reproduction-NAME if not given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at a time; one a core if not given.")
    ] = None,
) -> None:
    """Run a paper's tables and figures at the size of a laptop, and write the page.

    A reproduction that was interrupted goes on with the same command.
    """
    from polyrhythm.cli.terminal import runs_progress
    from polyrhythm_experiments.reproduce.papers import PaperRequest
    from polyrhythm_experiments.reproduce.papers import reproduce as write_page

    folder = out or Path(f"reproduction-{name}")
    with runs_progress() as progress:
        bar = progress.add_task(name, total=None)

        def tell(finished: int, planned: int) -> None:
            progress.update(bar, completed=finished, total=planned)

        request = PaperRequest(name, folder, ctx.obj, quick, seeds, data, jobs or -1, tell)
        files = write_page(request)
    for file in files:
        typer.echo(str(file))
