"""Checks of what the caller of a public function has given: one line with the argument, the value and the remedy."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict

from polyrhythm.errors import SpecError, UsageError

MOST_SEED = 2**32 - 1
"""What the generators of NumPy and torch take, also times a million, as some seeds are made."""

MOST_EPOCHS = 1e6
"""Of a run; more are a slip of the finger."""

TakenKinds: TypeAlias = tuple[tuple[type, ...], str]
"""Types that an argument may have, and how a line says so."""

KINDS: dict[Any, TakenKinds | None] = {
    Any: None,
    object: None,
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    bool: ((bool,), "True or False"),
    str: ((str,), "text"),
}
"""Of types that an argument may be declared with."""


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
    if isinstance(value, bool) or number < least or (most is not None and number > most):
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


def name_of(policy: Any) -> str:
    """A policy's name; that of its class if it has none."""
    name: str = policy.name or type(policy).__name__
    return name


def checked(check: Callable[..., None]) -> Callable[..., None]:
    """A policy's `__post_init__`, for values of the types that its fields declare; what it refuses names the policy.

    >>> from polyrhythm.policies import LocalSGD
    >>> LocalSGD(0)
    Traceback (most recent call last):
        ...
    polyrhythm.errors.SpecError: policy local: h must be a whole number of at least 1 but got 0
    """

    @wraps(check)
    def post_init(policy: Any, *given: Any) -> None:
        try:
            check_types(policy)
            check(policy, *given)
        except SpecError as error:
            raise SpecError.of(f"policy {name_of(policy)}", error) from error.__cause__

    return post_init


def check_types(policy: Any) -> None:
    """Refuse values that are not of the types that a policy's fields declare."""
    cls: Any = type(policy)
    for name, (kinds, wanted) in kinds_of(cls).items():
        value = getattr(policy, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise SpecError(f"{name} must be {wanted} but got {value!r}")


@lru_cache(maxsize=256)
def kinds_of(cls: Any) -> dict[str, TakenKinds]:
    """What each field takes; without those of which it is not known here."""
    try:
        hints = get_type_hints(cls)
    except Exception:  # of a class of the user's own
        return {}
    found = {field.name: kinds_of_hint(hints[field.name]) for field in fields(cls)}
    return {name: kinds for name, kinds in found.items() if kinds is not None}


def kinds_of_hint(hint: Any) -> TakenKinds | None:
    """What a field takes that declares this.

    >>> kinds_of_hint(int | None), kinds_of_hint(int | str)
    (((<class 'numbers.Integral'>, <class 'NoneType'>), 'a whole number or None'), None)
    """
    if hint in KINDS:
        return KINDS[hint]
    options, kind = get_args(hint), get_origin(hint) or hint
    if NoneType in options and len(options) == 2:
        inner = kinds_of_hint(next(option for option in options if option is not NoneType))
        return None if inner is None else ((*inner[0], NoneType), f"{inner[1]} or None")
    if not isinstance(kind, type) or kind is UnionType or is_protocol(kind) or is_typeddict(kind):
        return None
    return (kind,), f"a {kind.__name__}"


def is_protocol(kind: type) -> bool:
    """What `isinstance` may refuse to look at."""
    return bool(getattr(kind, "_is_protocol", False))
