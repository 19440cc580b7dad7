"""Commands of packages that may not be installed, and calls that cannot be understood."""

from enum import StrEnum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from polyrhythm.cli.group import USAGE, CommandGroup


@pytest.mark.parametrize("command", ["reproduce", "diagnose"])
def test_a_command_of_the_experiments_says_how_to_get_it(command: str) -> None:
    app = typer.Typer(cls=CommandGroup)
    app.command()(lambda: None)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, [command, "esync"])
    assert done.exit_code == USAGE
    (line,) = done.stderr.splitlines()
    assert line == (
        f"polyrhythm: {command} comes with the package polyrhythm-experiments; in a checkout run: "
        "pip install . ./experiments"
    )


class Kind(StrEnum):
    A = "a"
    B = "b"


CALLS: dict[tuple[str, ...], str] = {
    ("go", "--jobs", "0"): "Invalid value for '--jobs': Input should be greater than or equal to 1 but got '0'",
    ("go", "--jobs", "x"): "Invalid value for '--jobs': Input should be a valid integer, unable to parse string as an "
    "integer but got 'x'",
    ("go", "--kind", "up"): "Invalid value for '--kind': 'up' is not one of 'a', 'b'",
}


@pytest.mark.parametrize("words", CALLS)
def test_a_wrong_call_is_one_line_with_the_value_and_where_to_read_on(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(two_commands(), list(words), prog_name="polyrhythm")
    assert (done.exit_code, done.stdout) == (USAGE, "")
    assert done.stderr == f"polyrhythm: {CALLS[words]}; see polyrhythm go --help\n"


def test_an_option_without_its_value_is_one_line() -> None:
    done = CliRunner().invoke(two_commands(), ["go", "--jobs"], prog_name="polyrhythm")
    assert (done.exit_code, done.stderr) == (
        USAGE,
        "polyrhythm: Option '--jobs' requires an argument; see polyrhythm --help\n",
    )


def test_a_command_that_is_not_known_is_one_line() -> None:
    done = CliRunner().invoke(two_commands(), ["goo"], prog_name="polyrhythm")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1)
    assert done.stderr.startswith("polyrhythm: No such command 'goo'.")
    assert done.stderr.endswith("; see polyrhythm --help\n")


def test_a_flag_before_the_command_that_is_not_known_is_one_line() -> None:
    done = CliRunner().invoke(two_commands(), ["--foo", "go"], prog_name="polyrhythm")
    assert (done.exit_code, done.stdout) == (USAGE, "")
    assert done.stderr == "polyrhythm: No such option: --foo; see polyrhythm --help\n"


def test_a_group_without_a_command_shows_its_help() -> None:
    done = CliRunner().invoke(two_commands(), ["inner"], prog_name="polyrhythm")
    assert "Usage: polyrhythm inner" in done.output
    assert "see polyrhythm" not in done.output


def test_a_list_that_would_hide_another_is_one_line() -> None:
    done = CliRunner().invoke(two_commands(), ["go", "--names=a", "--names", "b"], prog_name="polyrhythm")
    assert (done.exit_code, done.stdout) == (USAGE, "")
    said = "Invalid value for '--names': it is given twice; give it once, as A,B; see polyrhythm go --help"
    assert done.stderr == f"polyrhythm: {said}\n"


def test_a_later_value_changes_one_and_words_of_another_command_may_come_twice() -> None:
    words = ["go", "--jobs", "1", "--jobs", "2", "--word", "a", "--word", "b", "--", "--names", "a", "--names", "b"]
    assert CliRunner().invoke(two_commands(), words, prog_name="polyrhythm").exit_code == 0


def two_commands() -> typer.Typer:
    app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
    inner = typer.Typer(no_args_is_help=True)
    inner.command("deep")(lambda: None)
    inner.callback()(lambda: None)
    app.add_typer(inner, name="inner")
    app.command("go")(go)
    return app


def go(
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    kind: Kind = Kind.A,
    names: Annotated[str, typer.Option(metavar="A,B")] = "",
    word: Annotated[list[str] | None, typer.Option()] = None,
    rest: Annotated[list[str] | None, typer.Argument()] = None,
) -> None: ...


def test_ctrl_c_is_one_line_wherever_it_comes() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    app = typer.Typer(cls=CommandGroup)
    app.command("stop")(stop)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, ["stop"])
    assert (done.exit_code, done.stderr) == (130, "polyrhythm: interrupted\n")
