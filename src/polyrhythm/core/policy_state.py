"""A policy's state as text: values, tuples and the policy's own frozen classes, by name. Reading it runs no code."""

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from polyrhythm.errors import UsageError

PLAIN = (type(None), bool, int, float, str)


def encode_state(state: Any) -> str:
    """The text of a state.

    >>> decode_state(encode_state((1, None, (0.5, float("inf")))))
    (1, None, (0.5, inf))

    Raises:
        UsageError: for a state that has anything but values, containers and instances of dataclasses and named tuples.
    """
    return json.dumps(to_tree(state), separators=(",", ":"))


def decode_state(text: str) -> Any:
    """The state of a text.

    Raises:
        UsageError: for a text that is no state, or of classes that are not loaded here.
    """
    try:
        return from_tree(json.loads(text))
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise UsageError(f"a policy's state cannot be read: {error}") from None


def to_tree(value: Any) -> Any:
    """A value as JSON has it: containers and instances are lists that begin with what they are."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in CONTAINERS:
        return [kind.__name__, [to_tree(each) for each in (value.items() if kind is dict else listed(value))]]
    names = field_names(kind)
    if names is None:
        raise UsageError(f"{kind.__module__}.{kind.__qualname__} cannot be kept in a checkpoint")
    return ["", f"{kind.__module__}:{kind.__qualname__}", [to_tree(getattr(value, name)) for name in names]]


def listed(value: Any) -> Any:
    """The elements of a container, those of a set in an order that follows from them."""
    return sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value


def from_tree(tree: Any) -> Any:
    """What `to_tree` was given."""
    if type(tree) in PLAIN:
        return tree
    if tree[0]:
        return CONTAINERS_BY_NAME[tree[0]](from_tree(each) for each in tree[1])
    kind = class_of(tree[1])
    return made(kind, [from_tree(each) for each in tree[2]])


def class_of(name: str) -> type:
    """A dataclass or named tuple of a module that is loaded already."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or field_names(found) is None:
        raise UsageError(f"{name}, a part of a policy's state, is not known here; use the version that has written it")
    return found


def field_names(kind: type) -> list[str] | None:
    """The fields of a dataclass or a named tuple; None for other classes."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def made(kind: type, values: list[Any]) -> Any:
    """An instance with these fields, as it was: nothing is computed from them anew."""
    names = field_names(kind) or []
    if len(names) != len(values):
        raise UsageError(f"{kind.__qualname__} has {len(names)} fields, and its state {len(values)}")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    instance = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


CONTAINERS: tuple[type, ...] = (tuple, list, dict, set, frozenset)
CONTAINERS_BY_NAME: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in CONTAINERS}
