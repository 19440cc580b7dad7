"""Ranges of the numbers in a scenario, checked when it is read; infinity only where it means never or free."""

from typing import Annotated, TypeAlias

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=1)]
"""A number of things, at least one."""

MOST_WORKERS = 1_000_000
"""More are taken for a slip of the finger; `simulate uniform --timing-only` with 100,000 takes 17 s."""

WorkerCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
"""A number of workers."""

Index: TypeAlias = Annotated[int, Meta(ge=0)]
"""A worker, or a step of a worker."""

UnitShare: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A probability."""

Deviation: TypeAlias = Annotated[float, Meta(ge=0, le=100)]
"""A standard deviation as a share of its mean."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
"""A time or duration of at most thirty years."""

PositiveSeconds: TypeAlias = Annotated[float, Meta(ge=1e-12, le=1e9)]
"""A duration above zero, at least a picosecond, so that its inverse is a number, too."""

SecondsOrEver: TypeAlias = Annotated[float, Meta(ge=0)]
"""A duration that may be without end."""

Factor: TypeAlias = Annotated[float, Meta(ge=1, le=1e9)]
"""So many times as long."""

Bytes: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
"""Size of a message."""

Gigabits: TypeAlias = Annotated[float, Meta(gt=0)]
"""Bandwidth in gigabits a second; inf is free."""
