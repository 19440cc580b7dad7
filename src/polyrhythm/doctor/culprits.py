"""Who makes the others wait, with which part of its steps, how often, and what it costs."""

from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.evidence import Evidence, StepPart
from polyrhythm.doctor.lateness import MOSTLY, LateRanks, StepFlags, lateness, runs_of

LateKind: TypeAlias = Literal["transient", "rotating", "persistent"]
"""As everywhere: late for a while, in turns with others, or most of the time."""

LEAST_LOST = 0.02
"""Share of the job that a culprit costs; less is not worth a verdict."""

MINOR = 0.1
"""A rank that costs less than this share of what all culprits cost is not named."""

SELDOM = 1 / 3
"""A pause is what a rank does in fewer steps than this share, each time for a step or two."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that others wait for.

    Args:
        rank: its number.
        host: where it runs; empty where nobody knows.
        part: which part of its steps takes longer than the others'.
        section: of the loop, if the part is computing and the source tells sections apart.
        kind: transient, rotating or persistent.
        late_share: share of the steps in which it is late.
        excess_s: what such a step takes longer than those of the others, mean.
        lost_s: what the job would save without it.
        lost_share: the same as a share of the job.
        peer: the rank at the other end, if the part is a link.
        peer_host: where that one runs.
    """

    rank: int
    host: str
    part: StepPart
    section: str
    kind: LateKind
    late_share: float
    excess_s: float
    lost_s: float
    lost_share: float
    peer: int | None = None
    peer_host: str = ""


def culprits(evidence: Evidence) -> tuple[list[Culprit], LateRanks]:
    """Those who cost something, the costliest first, and what they were judged by."""
    seen = lateness(evidence.own_s)
    rows = [*seen.always, *seen.spells]
    lost = losses(evidence, rows)
    if sum(lost.values()) < LEAST_LOST * evidence.seconds:
        return [], seen
    named = [row for row in sorted(rows, key=lambda row: -lost[row]) if lost[row] >= MINOR * sum(lost.values())]
    return [described(evidence, row, seen, named, lost[row]) for row in named], seen


def losses(evidence: Evidence, rows: list[int]) -> dict[int, float]:
    """Seconds by which steps would end earlier without these rows, each booked on the row that arrived last."""
    own_s = evidence.own_s
    others = [row for row in range(len(own_s)) if row not in rows]
    # If everyone is late in turns, each step is compared with its middle.
    rest = own_s[others].max(axis=0) if others else np.median(own_s, axis=0)
    saved = np.maximum(0.0, own_s.max(axis=0) - rest)
    last = own_s.argmax(axis=0)
    return {row: float(saved[last == row].sum()) for row in rows}


def described(evidence: Evidence, row: int, seen: LateRanks, named: list[int], lost_s: float) -> Culprit:
    flags = seen.late[row]
    always = row in seen.always
    steps = np.ones_like(flags) if always or not flags.any() else flags
    kind = kind_of(row, seen, named)
    part, excess_s = worst_part(evidence, row, steps, named)
    if part == "computing" and not always and is_pause(flags):
        part = "pause"
    section = worst_section(evidence, row, steps, named) if part == "computing" else ""
    return Culprit(
        rank=evidence.ranks[row],
        host=evidence.host(row),
        part=part,
        section=section,
        kind=kind,
        late_share=1.0 if always else float(flags.mean()),
        excess_s=excess_s,
        lost_s=lost_s,
        lost_share=lost_s / evidence.seconds,
    )


def kind_of(row: int, seen: LateRanks, named: list[int]) -> LateKind:
    in_turns = [other for other in named if other not in seen.always and seen.late[other].mean() <= MOSTLY]
    if row not in in_turns:
        return "persistent"
    return "rotating" if len(in_turns) > 1 else "transient"


def is_pause(flags: NDArray[np.bool_]) -> bool:
    """Seldom, and never for long."""
    runs = runs_of(flags)
    return bool(flags.mean() < SELDOM and runs.size and np.median(runs) <= 2)


def worst_part(evidence: Evidence, row: int, steps: StepFlags, named: list[int]) -> tuple[StepPart, float]:
    """The part that takes longest beyond that of the others, and by how much all parts do."""
    excess = {part: beyond(array, row, steps, named) for part, array in evidence.parts.items()}
    return max(excess, key=lambda part: excess[part]), sum(excess.values())


def worst_section(evidence: Evidence, row: int, steps: StepFlags, named: list[int]) -> str:
    excess = {name: beyond(array, row, steps, named) for name, array in evidence.detail.items()}
    return max(excess, key=lambda name: excess[name]) if excess else ""


def beyond(array: NDArray[np.float64], row: int, steps: StepFlags, named: list[int]) -> float:
    others = [other for other in range(len(array)) if other not in named] or [
        other for other in range(len(array)) if other != row
    ]
    return float(array[row, steps].mean() - np.median(array[others][:, steps]))
