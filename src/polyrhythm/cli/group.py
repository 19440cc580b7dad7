"""What all commands share: errors of the user end in one line, and the command knows how it was called."""

import shlex
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from polyrhythm.errors import PolicyError, PolyrhythmError

USAGE = 2
"""Exit code for what the user can mend before anything runs."""

FAILED = 1
"""Exit code when a run diverged or failed."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as drivers have it."""


class CommandGroup(TyperGroup):
    """The top command; the text of the whole call is the context's object."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context, with ``obj`` the command line that a reader can paste."""
        extra.setdefault("obj", shlex.join(["polyrhythm", *args]))
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PolyrhythmError as error:
            complain(str(error))
            # A policy that breaks the contract is found out by running it.
            raise typer.Exit(FAILED if isinstance(error, PolicyError) else USAGE) from None


def complain(line: str) -> None:
    print(f"polyrhythm: {line}", file=sys.stderr)
