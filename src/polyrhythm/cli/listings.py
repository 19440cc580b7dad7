"""What there is to choose from: policies and scenarios."""

import math
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from polyrhythm.cli.terminal import console, print_texts
from polyrhythm.core import Bounds, Cluster, Policy
from polyrhythm.core.policy import text
from polyrhythm.policies import KNOWN

WORKERS = 8
"""Size of the cluster whose bounds are shown."""


def print_policies() -> None:
    heads = ("spec and defaults", "what it does", f"bounds with {WORKERS} workers", "placement")
    print_texts(heads, (describe(cls) for _, cls in sorted(KNOWN.items())))
    console().print(
        "lead: steps between the fastest and the slowest worker. staleness: updates between a gradient's read and its "
        "arrival.\nplacement: clock decides from clocks alone, every_rank from everyone's scalars, coordinator from "
        "the order of arrival.",
        soft_wrap=True,
    )


def describe(cls: type[Policy[Any]]) -> tuple[str, str, str, str]:
    return signature(cls), cls.summary, bounds(cls), example(cls).traits.placement


def signature(cls: type[Policy[Any]]) -> str:
    """Spec with every parameter at its default; an ellipsis where one must be given.

    >>> from polyrhythm.policies import SSP
    >>> signature(SSP)
    'ssp:s=3'
    """
    arguments = (argument(f.name, f.default) for f in fields(cls))
    return ":".join(filter(None, (cls.name, ",".join(arguments))))


def argument(name: str, default: Any) -> str:
    if isinstance(default, tuple):
        return text(default)
    return f"{name}={'...' if default is MISSING else text(default)}"


def example(cls: type[Policy[Any]]) -> Policy[Any]:
    return cls(**dict.fromkeys(required(cls), WORKERS // 2))


def required(cls: type[Policy[Any]]) -> list[str]:
    return [f.name for f in fields(cls) if f.default is MISSING]


def bounds(cls: type[Policy[Any]]) -> str:
    promised = example(cls).bounds(Cluster(WORKERS))
    given = "".join(f" ({name} = {WORKERS // 2})" for name in required(cls))
    said = ", ".join(promises(promised))
    return said + given if said else "none"


def promises(bounds: Bounds) -> Iterator[str]:
    for name in ("lead", "staleness"):
        value = getattr(bounds, name)
        if not math.isinf(value):
            yield f"{name} <= {value:g}"


def print_scenarios() -> None:
    from polyrhythm.sim import built_in_scenarios

    print_texts(("scenario", "what it is"), built_in_scenarios().items())
