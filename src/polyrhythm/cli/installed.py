"""Commands that other installed packages bring, such as the reproductions of the papers.

A package registers a function as a command in the entry-point group ``polyrhythm.commands``.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

import typer

from polyrhythm.errors import UsageError

GROUP = "polyrhythm.commands"


def add_installed(app: typer.Typer) -> None:
    """Add each registered command; one that cannot be loaded says so when it is called."""
    for entry in entry_points(group=GROUP):
        try:
            app.command(entry.name)(entry.load())
        except Exception as error:
            app.command(entry.name, hidden=True)(broken(f"{entry.name!r} of {entry.value} cannot be loaded: {error!r}"))


def broken(reason: str) -> Callable[[], None]:

    def refuse() -> None:
        raise UsageError(f"command {reason}; install its package again")

    return refuse
