"""Policy specs: ``name``, ``name:3``, ``name:h=8,at=0.5``; a nested policy stands in parentheses.

A value without a name fills the field of the policy's dataclass at its position; those before it must do so too. A
first field that is a tuple of parts takes all values without a name, each a policy and its share of the workload:
``bsp@0.25,(ssp:3)@0.5,asp``. A name with a dot is a reference to a class elsewhere, ``./my_policy.py:Mine`` or
``package.module:Mine``, which the registry loads.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from polyrhythm.core.policy import Part, Policy
from polyrhythm.errors import SpecError, did_you_mean, line_of, may_raise, shown

Registry: TypeAlias = Mapping[str, type[Policy[Any]]]

KEYWORD = re.compile(r"\s*(\w+)\s*=")
"""Start of a value with a name; a nested policy starts with a parenthesis."""


SHARED = re.compile(r".*@[-+.\d]*")
"""A part with its share."""


def split(text: str, separator: str = ",") -> list[str]:
    """Parts of `text` between separators that stand outside parentheses.

    >>> split("(ssp:3,4)@0.5,asp")
    ['(ssp:3,4)@0.5', 'asp']
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth != 0:
        raise SpecError(f"spec {text!r} has unbalanced parentheses")
    return [*parts, text[start:]]


def parse_spec(spec: str, registry: Registry, place: str = "") -> Policy[Any]:
    """The policy that `spec` names, from a registry of policy classes by name.

    Args:
        spec: the text.
        registry: the classes.
        place: where it stands, for the line that refuses an unknown name.

    Raises:
        SpecError: for what is no text, an unknown name or key, a value of the wrong type or that the policy refuses.
    """
    if not isinstance(spec, str):
        raise SpecError(f"a policy is a spec, such as 'ssp:3', or a Policy, but got {spec!r}")
    name, colon, arguments = split_name(unwrap(spec))
    if name not in registry:
        raise SpecError(f"{place}unknown policy {name!r}: {did_you_mean(name, registry)}")
    if colon and not arguments:
        raise SpecError(f"policy {spec!r} ends in a colon; write {name!r} or give a value, as in 'ssp:3'")
    cls = registry[name]
    values = read_arguments(cls, spec, split(arguments) if arguments else [], registry)
    try:
        return cls(**values)
    except ValueError as error:
        raise SpecError.of(f"policy {spec!r}", error) from error
    except may_raise() as error:  # a policy of the user's own may do anything
        raise SpecError(f"policy {spec!r} cannot be made: {shown(error)}{line_of(error)}") from error


def split_name(spec: str) -> tuple[str, str, str]:
    """Name, colon and arguments of a spec.

    >>> split_name("local:h=8"), split_name("./my.py:Mine:k=3,b=2")
    (('local', ':', 'h=8'), ('./my.py:Mine', ':', 'k=3,b=2'))
    """
    name, colon, rest = spec.partition(":")
    if "." not in name or not colon:
        return name, colon, rest
    cls, colon, arguments = rest.partition(":")
    return f"{name}:{cls}", colon, arguments


def unwrap(spec: str) -> str:
    """`spec` without the blanks and the parentheses around it."""
    spec = spec.strip()
    if spec.startswith("(") and spec.endswith(")"):
        return unwrap(spec[1:-1])
    return spec


def read_arguments(cls: type[Policy[Any]], spec: str, parts: list[str], registry: Registry) -> dict[str, Any]:
    """Field values of `cls` from the comma-separated `parts` of a spec."""
    names = [f.name for f in fields(cls)]
    types = types_of(cls, spec)
    values: dict[str, Any] = {}
    for position, part in enumerate(parts):
        keyword = KEYWORD.match(part)
        if not keyword and types.get(next(iter(names), "")) == tuple[Part, ...]:
            values[names[0]] = (*values.get(names[0], ()), read_part(spec, part.strip(), registry))
            continue
        key = keyword[1] if keyword else positional(spec, names, values, position)
        if key not in names:
            raise SpecError(f"policy {spec!r} has no parameter {key!r}: {did_you_mean(key, names)}")
        if key in values:
            raise SpecError(f"policy {spec!r} gives {key!r} twice")
        values[key] = convert(spec, key, types[key], part[keyword.end() if keyword else 0 :].strip(), registry)
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise SpecError(f"policy {spec!r} needs {', '.join(missing)}, as in '{cls.name}:{missing[0]}=...'")
    return values


def types_of(cls: type[Policy[Any]], spec: str) -> dict[str, Any]:
    """The types that its fields declare."""
    try:
        return get_type_hints(cls)
    except Exception as error:  # of a class of the user's own
        raise SpecError(f"policy {spec!r} has an annotation that cannot be read: {error}") from error


def positional(spec: str, names: list[str], values: dict[str, Any], position: int) -> str:
    """Name of the field that the value at `position` fills."""
    if position >= len(names):
        accepted = f"takes at most {len(names)}: {', '.join(names)}" if names else "takes none"
        raise SpecError(f"policy {spec!r} has too many values; it {accepted}")
    if list(values) != names[:position]:
        raise SpecError(f"policy {spec!r} has a value without a name after one with a name")
    return names[position]


def read_part(spec: str, value: str, registry: Registry) -> Part:
    """A policy with its share behind an @."""
    policy, at, share = value.rpartition("@")
    if not at or ")" in share:
        return Part(parse_spec(value, registry))
    if SHARED.fullmatch(policy):
        raise SpecError(f"policy {spec!r}: {value!r} has several shares; give one, as in 'bsp@0.5'")
    try:
        return Part(parse_spec(policy, registry), float(share))
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"policy {spec!r}: the share of {policy!r} must be a number but got {share!r}") from None


def convert(spec: str, key: str, kind: Any, value: str, registry: Registry) -> Any:
    """`value` as the type that the field `key` declares."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(choice for choice in get_args(kind) if choice is not NoneType)
    if (isinstance(kind, type) and issubclass(kind, Policy)) or getattr(kind, "__origin__", None) is Policy:
        return parse_spec(value, registry, f"{key} of policy {spec!r}: ")
    if kind is str:
        return value
    if kind is bool:
        return convert_bool(spec, key, value)
    try:
        return kind(value)
    except (TypeError, ValueError):
        expected = {int: "a whole number", float: "a number"}.get(kind, str(kind))
        raise SpecError(f"policy {spec!r}: {key} must be {expected} but got {value!r}") from None


def convert_bool(spec: str, key: str, value: str) -> bool:
    """``true`` or ``false``, in any case."""
    if value.lower() not in ("true", "false"):
        raise SpecError(f"policy {spec!r}: {key} must be true or false but got {value!r}")
    return value.lower() == "true"
