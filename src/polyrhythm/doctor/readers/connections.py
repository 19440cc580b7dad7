"""Links between ranks from what each rank has kept of its connections: both ends of one have seen it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from polyrhythm.doctor.evidence import LinkUse
from polyrhythm.doctor.watch.links import LinkCount, LinkLooks, read_looks

SLOWEST = 1.0
"""Bytes a second; nothing is slower."""

RankName = tuple[int, str]
"""A rank and its host."""


def read_links(paths: Mapping[RankName, Path]) -> tuple[LinkUse, ...]:
    """The links among these ranks. A connection to anybody else, such as a store, is no link of the exchange."""
    looks = {name: read_looks(path) for name, path in paths.items() if path.exists()}
    owners = {ends: name for name, kept in looks.items() for ends in kept.connections}
    uses = [
        use
        for name, kept in looks.items()
        for own, other in kept.connections
        if (peer := owners.get((other, own))) is not None and peer != name
        if (use := link_use(name, peer, kept, (own, other))) is not None
    ]
    return tuple(uses)


def link_use(name: RankName, peer: RankName, kept: LinkLooks, ends: tuple[str, str]) -> LinkUse | None:
    """What one connection did between the looks; None if it was not seen twice."""
    seen = [(time_s, counts[ends]) for time_s, counts in zip(kept.times_s, kept.counts, strict=True) if ends in counts]
    spans = [between(before, after) for before, after in pairwise(seen) if after[0] > before[0]]
    if not spans:
        return None
    lasted_s, sent, needed_s = np.array(spans).T
    local = ends[0].split()[0] == ends[1].split()[0]
    return LinkUse(name[0], peer[0], name[1], peer[1], local, lasted_s, sent, needed_s)


def between(before: tuple[float, LinkCount], after: tuple[float, LinkCount]) -> tuple[float, float, float]:
    """Seconds, bytes, and seconds that these bytes need at the rate that the kernel has seen."""
    sent = max(0.0, after[1].sent - before[1].sent)
    return after[0] - before[0], sent, sent / max(after[1].rate, SLOWEST)


def links_beside(rings: Sequence[Path], names: Sequence[RankName]) -> tuple[LinkUse, ...]:
    """Those that lie beside the rings of the same ranks."""
    return read_links({name: ring.with_suffix(".links") for name, ring in zip(names, rings, strict=True)})
