"""What is said to the user: which line of the script was adapted, or cannot be."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

from polyrhythm.errors import NotedRefusalError, RefusalError, UsageError
from polyrhythm.lines import say

OURS = os.path.realpath(Path(__file__).parents[2]) + os.sep
ASIDE = tuple(os.path.realpath(Path(OURS, folder)) + os.sep for folder in ("runtime/script", "testing"))
"""Our code through which a call of the script may come."""
FOREIGN = (
    OURS,
    *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platlib", "purelib")),
)
"""Folders whose code is not the user's."""
INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
"""In the path of what is installed beside this environment: for the user alone, or for the whole system."""


def refuse(problem: str, place: str = "") -> RefusalError:
    """An error that starts with the line of the script that is running, or another `place`."""
    return NotedRefusalError(f"{place or script_line()}: {problem}")


def overlook(error: UsageError) -> None:
    """We have caught this ourselves: what it is about may never come to pass."""
    if isinstance(error, NotedRefusalError):
        error.overlooked = True


def caught() -> str:
    """The first refusal that was raised and is not under way any more: the script has caught it; empty if none was."""
    for error in list(NotedRefusalError.alive):
        error.note()
    return NotedRefusalError.first[1] if NotedRefusalError.first else ""


def tell(what: str, place: str = "") -> None:
    if os.environ.get("RANK", "0") == "0":
        say(f"{place or script_line()}: {what}")


def script_line() -> str:
    """The innermost line that is the user's own, as ``train.py:31``."""
    return next((shown(path, line) for path, line in callers() if is_script(path)), "script")


def script_lines() -> str:
    """All lines that are the user's own, innermost first: where something was made, if functions make several."""
    return " from ".join(shown(path, line) for path, line in callers() if is_script(path))


def is_script(path: str) -> bool:
    return not path.startswith("<") and not is_foreign(real(path))


def is_foreign(path: str) -> bool:
    """Whether a file is none of the user's.

    >>> is_foreign("/home/me/.local/lib/python3.11/site-packages/torch/optim/sgd.py"), is_foreign("/home/me/train.py")
    (True, False)
    """
    return path.startswith(FOREIGN) or any(folder in path for folder in INSTALLED)


def shown(path: str, line: int) -> str:
    return f"{os.path.relpath(real(path))}:{line}"


def asked_by_us() -> bool:
    """Whether it is Polyrhythm that has called torch, and not the script."""
    for path, _ in callers():
        if path.startswith(OURS) and not path.startswith(ASIDE):
            return True
        if not is_foreign(path):
            return False
    return False


def called_by_script() -> bool:
    """Whether the script's own code has called what we stand in for, and not a library in its stead."""
    return not is_foreign(innermost_caller())


def innermost_caller() -> str:
    """The file of what has called our stand-in."""
    return next((path for path, _ in callers() if not path.startswith(ASIDE)), "")


def callers() -> Iterator[tuple[str, int]]:
    """Files and lines that lead here, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith("<"):
            yield real(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back


def real(path: str) -> str:
    """A file without links; who has called is asked in a step, and a look at each folder takes longer than the rest."""
    return absolute(path) if path.startswith(os.sep) else os.path.realpath(path)


absolute = cache(os.path.realpath)
