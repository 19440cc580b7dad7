"""What all commands share: errors of the user end in one line, and the command knows how it was called."""

import shlex
from typing import Any

import typer
from typer.core import TyperGroup

from polyrhythm.errors import PolicyError, PolyrhythmError, UsageError
from polyrhythm.lines import say

USAGE = 2
"""Exit code for what the user can mend before anything runs."""

FAILED = 1
"""Exit code when a run diverged or failed."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as drivers have it."""

EXPERIMENTS = "the package polyrhythm-experiments; in a checkout run: pip install . ./experiments"
ELSEWHERE = {"reproduce": EXPERIMENTS, "diagnose": EXPERIMENTS}
"""Commands that another package of ours brings, and how to get it."""


class CommandGroup(TyperGroup):
    """The top command; the text of the whole call is the context's object."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context, with ``obj`` the command line that a reader can paste."""
        extra.setdefault("obj", shlex.join(["polyrhythm", *args]))
        return super().make_context(info_name, args, parent, **extra)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; one of ours that is not installed says how to install it."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in ELSEWHERE:
            raise UsageError(f"{cmd_name} comes with {ELSEWHERE[cmd_name]}")
        return found

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PolyrhythmError as error:
            say(str(error))
            # A policy that breaks the contract is found out by running it.
            raise typer.Exit(FAILED if isinstance(error, PolicyError) else USAGE) from None
        except KeyboardInterrupt:  # while it still imports; what works says by itself how far it is
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
