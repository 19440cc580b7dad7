"""Commands of packages that may not be installed."""

import pytest
import typer
from typer.testing import CliRunner

from polyrhythm.cli.group import INTERRUPTED, USAGE, CommandGroup


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


def test_ctrl_c_is_one_line_wherever_it_comes() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    app = typer.Typer(cls=CommandGroup)
    app.command("stop")(stop)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, ["stop"])
    assert (done.exit_code, done.stderr) == (INTERRUPTED, "polyrhythm: interrupted\n")
