"""Checks of policy parameters that several policies share."""

from polyrhythm.errors import SpecError


def require_at_least(least: int, **values: int) -> None:
    """Refuse whole-number parameters below `least`.

    >>> require_at_least(1, k=0)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.SpecError: k must be a whole number of at least 1 but got 0
    """
    for name, value in values.items():
        if not isinstance(value, int) or value < least:
            raise SpecError(f"{name} must be a whole number of at least {least} but got {value}")
