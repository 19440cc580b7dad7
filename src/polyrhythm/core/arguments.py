"""Checks of what the caller of a public function has given: one line with the argument, the value and the remedy."""

import operator
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from polyrhythm.errors import UsageError

MOST_SEED = 2**32 - 1
"""What the generators of NumPy and torch take, also times a million, as some seeds are made."""


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an `int`; NumPy's whole numbers are such, too.

    >>> whole_number("seed", 1.5, 0)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: seed must be a whole number of at least 0 but got 1.5
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} must be a whole number {allowed} but got {value!r}")
    return number


def listed(name: str, values: Any, example: str) -> list[Any]:
    """The values of something that can be looped over, is no text and has any.

    >>> listed("seeds", 3, "[0, 1]")
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: seeds must be a list, as in [0, 1], but got 3
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"{name} must be a list, as in {example}, but got {values!r}")
    if not (found := list(values)):
        raise UsageError(f"{name} is empty; give at least one, as in {example}")
    return found


def path_of(name: str, value: Any) -> Path:
    """The value as a path.

    >>> path_of("trace", 3)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: trace must be a path but got 3
    """
    if not isinstance(value, str | PathLike):
        raise UsageError(f"{name} must be a path but got {value!r}")
    return Path(value)


def check_share(name: str, value: Any) -> None:
    """Refuse what is given and no number from 0 to 1.

    >>> check_share("target", 90)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: target must be a number from 0 to 1 but got 90
    """
    if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
        raise UsageError(f"{name} must be a number from 0 to 1 but got {value!r}")


def check_function(name: str, value: Any) -> None:
    """Refuse what is given and cannot be called.

    >>> check_function("progress", 3)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: progress must be a function but got 3
    """
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be a function but got {value!r}")
