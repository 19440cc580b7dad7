"""Starts somebody's command with the watcher in each of its ranks."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import polyrhythm
from polyrhythm.doctor.watch.watcher import FOLDER
from polyrhythm.early_end import ended_too
from polyrhythm.errors import UsageError

STDERR = 2
STARTUP = Path(__file__).parent / "startup"
"""Put on the path in front, so that Python runs what lies there when it starts."""


def run_watched(command: Sequence[str], folder: Path, aside: bool = False) -> int:
    """Run the command to its end; its exit status. What it prints goes to stderr if it is to stand `aside`."""
    try:
        output = STDERR if aside else None
        process = subprocess.Popen(command, env=watched_environment(folder), stdout=output)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]!r}: {error.strerror}; write the command as without us") from error
    with ended_too(process):
        return process.wait()


def watched_environment(folder: Path) -> dict[str, str]:
    """What makes Python find the watcher, and the watcher its folder."""
    package = Path(polyrhythm.__file__).parents[1]
    # The last one only counts where polyrhythm is not installed for the interpreter of the command.
    paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")]), str(package)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)}
