"""Time stamps of ranks, each on its own host's clock, become evidence on one clock.

A collective ends for all at nearly the same time, so its ends are what clocks are set by. Where they do not agree even
then, the files are not of the same steps of one job.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.evidence import Evidence, StepPart, StepTimes
from polyrhythm.errors import TraceError

APART = 0.5
"""Share of a step by which ends of one collective may differ in the middle, before two files are not of one job."""


DRIFT = 1e-3
"""Seconds a second by which two clocks may run apart; quartzes do so by a tenth of it at most."""


@dataclass(frozen=True)
class StepMarks:
    """One step of a rank, in seconds on its own clock.

    Args:
        arrival_s: when the rank stood at the exchange.
        end_s: when the exchange was over.
        loading_s: of it, waiting for the loader.
        pause_s: of it, the interpreter stood still.
        other_s: further time in exchanges in the middle of the step.
        detail: computing by section of the loop.
    """

    arrival_s: float
    end_s: float
    loading_s: float = 0.0
    pause_s: float = 0.0
    other_s: float = 0.0
    detail: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankMarks:
    """The steps of one rank by their numbers; `clock` is the same for ranks that read the same clock."""

    rank: int
    host: str
    clock: str
    steps: Mapping[int, StepMarks]


def evidence_of(
    source: str,
    marks: Sequence[RankMarks],
    batch_size: int | None = None,
    overlap: float | None = None,
    world: int | None = None,
) -> Evidence:
    """The steps that all ranks have made, on one clock."""
    ordered = sorted(marks, key=lambda rank: rank.rank)
    check_ranks(source, [rank.rank for rank in ordered], world)
    numbers = common_steps(source, ordered)
    ends = table(ordered, numbers, "end_s")
    shifts = clock_shifts(ends, [rank.clock for rank in ordered])
    check_together(source, ordered, ends + shifts)
    arrivals = np.minimum(table(ordered, numbers, "arrival_s"), ends)
    # A step begins where the one before it ends, so one whose predecessor is missing is left out.
    follows = np.flatnonzero(np.diff(numbers) == 1)
    starts = ends[:, follows]
    made = len(set.union(*({*rank.steps} for rank in ordered))) - 1  # the first one has no beginning
    loading_s, pause_s, other_s = (
        table(ordered, numbers, name)[:, follows + 1] for name in ("loading_s", "pause_s", "other_s")
    )
    # Who is late makes the others wait in whichever exchange comes first.
    own_s = np.maximum(0.0, arrivals[:, follows + 1] - starts - other_s)
    exchange_s = ends[:, follows + 1] - starts - own_s
    communication_s = np.broadcast_to(exchange_s.min(axis=0), exchange_s.shape)
    return Evidence(
        source,
        tuple(rank.rank for rank in ordered),
        tuple(rank.host for rank in ordered),
        starts + shifts[:, follows],
        parts_of(own_s, loading_s, pause_s),
        exchange_s - communication_s,
        np.array(communication_s),
        batch_size,
        detail=details(ordered, [numbers[place + 1] for place in follows]),
        overlap=overlap,
        wall_s=float((ends[:, -1] - ends[:, 0]).mean()),
        notes=left_out(made - len(follows), made),
    )


def parts_of(own_s: StepTimes, loading_s: StepTimes, pause_s: StepTimes) -> dict[StepPart, StepTimes]:
    """What each rank did before it stood at the exchange; parts that were stamped take no more than there was."""
    loading_s = np.minimum(loading_s, own_s)
    pause_s = np.minimum(pause_s, own_s - loading_s)
    return {"computing": own_s - loading_s - pause_s, "data loading": loading_s, "pause": pause_s}


def check_ranks(source: str, ranks: list[int], world: int | None) -> None:
    twice = [rank for rank, count in Counter(ranks).items() if count > 1]
    if twice:
        raise TraceError(
            f"{source}: there are {ranks.count(twice[0])} traces of rank {twice[0]}; keep one of each rank"
        )
    there = {*ranks}
    missing = list(islice((rank for rank in range(world or 0) if rank not in there), 9))  # a broken file has any number
    if missing:
        named = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
        raise TraceError(f"{source}: the job has {world} ranks, but there is no trace of rank {named}; add it")
    if len(ranks) < 2:
        raise TraceError(f"{source}: needs traces of at least 2 ranks but got {len(ranks)}; add those of the others")


def common_steps(source: str, marks: Sequence[RankMarks]) -> list[int]:
    shared = set.intersection(*({*rank.steps} for rank in marks))
    if not any(number + 1 in shared for number in shared):
        fewest = min(marks, key=lambda rank: len(rank.steps))
        raise TraceError(
            f"{source}: {len(shared)} steps are in the traces of all ranks (rank {fewest.rank} has "
            f"{len(fewest.steps)}), and no two that follow one another; give whole traces of the same steps"
        )
    return sorted(shared)


def left_out(steps: int, made: int) -> tuple[str, ...]:
    """
    >>> left_out(0, 60), left_out(2, 60)
    ((), ('2 of 60 steps were left out: not all ranks have them and the step before',))
    """
    why = "not all ranks have them and the step before"
    return (f"{steps:,} of {made:,} steps were left out: {why}",) if steps else ()


def table(marks: Iterable[RankMarks], numbers: list[int], name: str) -> StepTimes:
    return np.array([[getattr(rank.steps[number], name) for number in numbers] for rank in marks], dtype=float)


def details(marks: Sequence[RankMarks], numbers: list[int]) -> dict[str, StepTimes]:
    names = dict.fromkeys(name for rank in marks for step in rank.steps.values() for name in step.detail)
    return {
        name: np.array([[rank.steps[number].detail.get(name, 0.0) for number in numbers] for rank in marks])
        for name in names
    }


def clock_shifts(ends: StepTimes, clocks: Sequence[str]) -> StepTimes:
    """What to add to the times of each rank and step, so that collectives end at one time on the first one's clock.

    A clock may also run at a rate of its own, which is a straight line over the job.
    """
    shifts = np.zeros_like(ends)
    first = ends[[row for row, clock in enumerate(clocks) if clock == clocks[0]]].min(axis=0)
    for clock in dict.fromkeys(clocks):
        rows = [row for row, other in enumerate(clocks) if other == clock]
        if clock != clocks[0]:
            shifts[rows] = straight(ends[rows].min(axis=0), first - ends[rows].min(axis=0))
    return shifts


def straight(times_s: NDArray[np.float64], gaps_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The line through the medians of both halves; few gaps make a constant."""
    half = len(gaps_s) // 2
    if half < 8:
        return np.full(len(gaps_s), np.median(gaps_s))
    early, late = (np.median(times_s[part]) for part in (slice(half), slice(half, None)))
    low, high = (np.median(gaps_s[part]) for part in (slice(half), slice(half, None)))
    slope = np.clip((high - low) / max(late - early, 1e-9), -DRIFT, DRIFT)
    return np.asarray((low + high) / 2 + (times_s - (early + late) / 2) * slope)


def check_together(source: str, marks: Sequence[RankMarks], ends: StepTimes) -> None:
    step_s = float(np.median(np.diff(ends, axis=1)))
    if step_s <= 0:
        raise TraceError(f"{source}: collectives do not follow one another in time; give traces of one job")
    strays = np.median(np.abs(ends - np.median(ends, axis=0)), axis=1)
    worst = int(np.argmax(strays))
    if strays[worst] > APART * step_s:
        raise TraceError(
            f"{source}: the collectives of rank {marks[worst].rank} end {strays[worst]:.3g} s apart from those of the "
            "others; is its trace of another job or another part of it?"
        )
