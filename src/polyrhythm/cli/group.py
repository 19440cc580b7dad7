"""What all commands share: errors of the user end in one line, and the command knows how it was called."""

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

from polyrhythm.early_end import early_end
from polyrhythm.errors import PolicyError, PolyrhythmError, UsageError
from polyrhythm.lines import say

USAGE = 2
"""Exit code for what the user can mend before anything runs."""

FAILED = 1
"""Exit code when a run diverged or failed."""

EXPERIMENTS = "the package polyrhythm-experiments; in a checkout run: pip install . ./experiments"
ELSEWHERE = {"reproduce": EXPERIMENTS, "diagnose": EXPERIMENTS}
"""Commands that another package of ours brings, and how to get it."""


CALL_ERROR: Any = typer.BadParameter.__base__
"""What is raised for a call that cannot be understood; typer does not export it."""


class CommandGroup(TyperGroup):
    """The top command; the text of the whole call is the context's object."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context, with ``obj`` the command line that a reader can paste."""
        extra.setdefault("obj", shlex.join(["polyrhythm", *args]))
        with calls_in_one_line():
            return super().make_context(info_name, args, parent, **extra)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; one of ours that is not installed says how to install it."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in ELSEWHERE:
            raise UsageError(f"{cmd_name} comes with {ELSEWHERE[cmd_name]}")
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command and its words, of which no list is there twice."""
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            refuse_twice(typer.Context(command, parent=ctx, info_name=name, **command.context_settings), words)
        return name, command, words

    def invoke(self, ctx: Any) -> Any:
        with early_end.by_signals(), mistakes_in_one_line(), calls_in_one_line():
            return super().invoke(ctx)


def refuse_twice(ctx: Any, words: list[str]) -> None:
    """Refuse a list that is given twice, as by `--policies bsp --policies asp`: the second would hide the first."""
    given: list[Any] = []
    with suppress(CALL_ERROR):  # which the command tells
        given = ctx.command.make_parser(ctx).parse_args(args=list(words))[2]
    for option, times in Counter(given).items():
        if times > 1 and "," in (option.metavar or ""):
            raise typer.BadParameter(f"it is given twice; give it once, as {option.metavar}", ctx=ctx, param=option)


def ended_early(after: str = "") -> typer.Exit:
    """What ends a command that a signal has ended, with a line that says so, and what comes after that."""
    say(f"{early_end.how}{after}")
    return typer.Exit(early_end.status)


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:  # while it still imports; what works says by itself how far it is
        raise ended_early() from None
    except Exception as error:
        if early_end.came:
            raise ended_early() from None
        if not isinstance(error, PolyrhythmError):
            raise
        say(str(error))
        # A policy that breaks the contract is found out by running it.
        raise typer.Exit(FAILED if isinstance(error, PolicyError) else USAGE) from None


@contextmanager
def calls_in_one_line() -> Iterator[None]:
    try:
        yield
    except CALL_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group that was called alone shows its help
            raise
        say(mistaken_call(error))
        raise typer.Exit(USAGE) from None


def mistaken_call(error: Any) -> str:
    """What is wrong with a call, the value that was given if typer leaves it out, and where to read on."""
    message = error.format_message().rstrip(".").replace(": Value error, ", ": ")
    given = repr(error.__cause__.errors()[0]["input"]) if hasattr(error.__cause__, "errors") else ""
    value = f" but got {given}" if given not in message else ""
    command = error.ctx.command_path if error.ctx else "polyrhythm"  # none yet while the words are told apart
    return f"{message}{value}; see {command} --help"
