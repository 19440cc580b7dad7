"""How a spec that somebody has begun to type may go on."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from polyrhythm.core import Policy
from polyrhythm.core.policy import text

MOST = 40
"""Specs that are proposed."""


def completions(begun: str, known: Mapping[str, type[Policy[Any]]]) -> list[str]:
    """Specs that begin like this: names, and after a colon the parameters that are not given yet, at their defaults.

    >>> from polyrhythm.policies import BUILT_IN
    >>> completions("ss", BUILT_IN), completions("ssp:", BUILT_IN), completions("dssp:s_low=2,", BUILT_IN)
    (['ssp', 'ssp:s=3'], ['ssp:s=3'], ['dssp:s_low=2,s_high=15'])
    """
    name, colon, given = begun.partition(":")
    if not colon:
        found = [
            spec for known_name in sorted(known) if known_name.startswith(name) for spec in forms(known_name, known)
        ]
        return found[:MOST]
    if name not in known:
        return []
    done, _, last = given.rpartition(",")
    front = f"{name}:{done}," if done else f"{name}:"
    had = {part.partition("=")[0] for part in done.split(",")}
    proposed = [front + each for key, each in arguments(known[name]) if key not in had and each.startswith(last)]
    return [spec for spec in proposed if spec != begun][:MOST]


def forms(name: str, known: Mapping[str, type[Policy[Any]]]) -> list[str]:
    """The name by itself if that is a spec, and with its first parameter."""
    first = next(iter(arguments(known[name])), None)
    bare = [] if any(f.default is MISSING for f in fields(known[name])) else [name]
    return bare if first is None else [*bare, f"{name}:{first[1]}"]


def arguments(cls: type[Policy[Any]]) -> list[tuple[str, str]]:
    """Parameters, and how each is written at its default; one that has none ends in a sign of equality."""
    return [
        (field.name, f"{field.name}=" + ("" if field.default in (MISSING, None) else text(field.default)))
        for field in fields(cls)
        if not isinstance(field.default, tuple)
    ]
