"""Commands of packages that may not be installed."""

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
