"""Where the time goes that `auto` takes beyond the best fixed policy, by what it said, and what no trial could save."""

import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from polyrhythm.core import Report, Trace
from polyrhythm.sim import Scenario, simulate

EXACT = "the best keeps BSP's gradients"
NOTHING = "no trial: none can be paid and show something in time"
LATE = "the best is kept, after it was found"
OTHER = "another one is kept"
GIVEN_UP = "the best is given up"
OTHERS = "others are given up"


class Told(NamedTuple):
    """What one job said: names on trial, kept and given up, and its time and samples when the first trial began."""

    tried: tuple[str, ...]
    kept: tuple[str, ...]
    begun_s: float
    begun_samples: int


class Gap(NamedTuple):
    """One job: the time of the best policy over ours, why it is less than 1, and what it would be if the first trial
    had been the best policy's and had told at once, for nothing.
    """

    cause: str
    share: float
    bound: float


def told(scenario: Scenario, policy: str, seed: int) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        simulate(scenario, policy, seed=seed, trace=Path(folder) / "trace")
        trace = Trace.load(Path(folder) / "trace")
    said = [remark for _, remark in trace.remarks]
    tried = tuple(name_of(remark) for remark in said if ": on trial" in remark)
    kept = tuple(name_of(remark) for remark in said if ": kept" in remark)
    first = next((index for index, remark in trace.remarks if ": on trial" in remark), None)
    if first is None:
        return Told(tried, kept, math.inf, 0)
    before = [entry.event for entry in trace.entries[: first + 1]]
    samples = sum(event.samples for event in before if isinstance(event, Report))
    return Told(tried, kept, before[-1].time_s, samples)


def name_of(spec: str) -> str:
    """The policy that a spec or a line ends in, without parameters.

    >>> name_of("post-local:8,at=0.1"), name_of("switch:bsp@0.1,asp"), name_of("k-async:2: kept; 1.6x the throughput")
    ('local', 'asp', 'k-async')
    """
    name = spec.partition(":")[0]
    return {"post-local": "local", "switch": spec.rpartition(",")[2]}.get(name, name)


def gap(said: Told, rival: str, best_s: float, ours_s: float, bsp_samples: int) -> Gap:
    """Of a job that took the best policy so long, and ours."""
    share = best_s / ours_s
    left = 1 - min(1.0, said.begun_samples / bsp_samples)
    bound = min(1.0, best_s / (said.begun_s + best_s * left)) if said.tried else share
    return Gap(cause_of(said, name_of(rival)), share, max(share, bound))


def cause_of(said: Told, best: str) -> str:
    if best in ("bsp", "balanced"):
        return EXACT
    if not said.tried:
        return NOTHING
    if said.kept:
        return LATE if best in said.kept else OTHER
    return GIVEN_UP if best in said.tried else OTHERS


def rows(gaps: list[Gap]) -> Iterable[tuple[str, ...]]:
    """Of each cause: jobs, median of the best's speed, the part of all that is missing, and the median of the bound."""
    whole = lack(gaps) or 1.0
    for cause in (EXACT, NOTHING, LATE, OTHER, GIVEN_UP, OTHERS):
        if found := [one for one in gaps if one.cause == cause]:
            yield row(cause, found, lack(found) / whole)
    yield row("all", gaps, 1.0)


def lack(gaps: list[Gap]) -> float:
    return sum(-math.log(min(1.0, one.share)) for one in gaps)


def row(cause: str, gaps: list[Gap], part: float) -> tuple[str, ...]:
    shares = median(one.share for one in gaps), part, median(one.bound for one in gaps)
    return cause, str(len(gaps)), *(f"{share:.0%}" for share in shares)
