"""Who arrives late: all the time, which shows in the means of blocks, or now and then, which shows in single steps.

Durations vary by themselves, so a rank is named for what chance does not do. Two questions are asked.

- **On the whole**: the steps are cut into blocks, because neighbours in time are alike and a slow minute is not thirty
  slow steps. A rank is late if its block means are above those of at least half of the others, by so much that the
  difference is many times its standard error.
- **Now and then**: a step is late if it takes longer than its peers' by more than six times the spread of the quick
  half. Several late steps in a row are one spell. Spells name a rank if they fall on few ranks although every rank was
  as likely, or if one of them lasts.
"""

from math import ceil, comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from polyrhythm.doctor.evidence import StepTimes

StepFlags = NDArray[np.bool_]
"""Yes or no, a row a rank and a column a step."""

BLOCKS = 10
LEAST_EXCESS = 0.03
"""Share of the usual time that a rank is late by on the whole, at least, after all doubt is taken away."""

DOUBT = 5.0
"""Standard errors of a difference of block means that are taken away."""

SPREADS = 6.0
LEAST_LATE = 0.15
"""Logarithm of how much longer a late step takes than its peers', at least."""

MOSTLY = 0.75
"""Share of late steps from which a rank is late on the whole."""

LASTING = 5
"""Late steps in a row that chance does not do."""

CHANCE = 1e-5
"""Probability at which spells on few ranks are no chance any more."""

QUARTER_TO_TENTH = 0.607
"""Between these quantiles of a normal distribution, in standard deviations."""

STILL = 1e-9
"""Seconds below which there is nothing to compare."""


class LateRanks(NamedTuple):
    """What was found.

    Attributes:
        always: rows that are late on the whole.
        spells: rows that are late now and then.
        late: which steps are late.
        suspect: a row whose spells may yet be chance; None if there is none.
        needed: spells that it takes.
    """

    always: tuple[int, ...]
    spells: tuple[int, ...]
    late: StepFlags
    suspect: int | None = None
    needed: int = 0


def lateness(own_s: StepTimes) -> LateRanks:
    """Who is late, from what each rank did itself in each step."""
    late = late_steps(own_s)
    always = late_on_the_whole(steady(own_s, late))
    counts, lasting = spells(late)
    counts[list(always)] = 0
    rare = unlikely(counts)
    rows = {*rare, *(row for row in range(len(own_s)) if lasting[row] and row not in always)}
    suspect = None if rows or always or not counts.any() else int(np.argmax(counts))
    return LateRanks(always, tuple(sorted(rows)), late, suspect, needed_spells(len(own_s)))


def steady(own_s: StepTimes, late: StepFlags) -> StepTimes:
    """The durations without single late steps, which must not count twice; who is late mostly keeps all."""
    kept = np.array(own_s)
    for row, flags in enumerate(late):
        if flags.mean() <= MOSTLY:
            kept[row, flags] = own_s[row, ~flags].mean()
    return kept


def late_on_the_whole(own_s: StepTimes) -> tuple[int, ...]:
    """Rows whose blocks take longer than those of at least half of the other rows."""
    means = np.stack([block.mean(axis=1) for block in np.array_split(own_s, BLOCKS, axis=1)], axis=1)
    ranks = len(means)
    typical_s = float(np.median(means))
    if typical_s <= STILL:
        return ()
    apart = means[:, None, :] - means[None, :, :]
    error = apart.std(axis=2, ddof=1) / np.sqrt(means.shape[1])
    sure_s = apart.mean(axis=2) - DOUBT * error
    beaten = (sure_s > LEAST_EXCESS * typical_s).sum(axis=1)
    return tuple(int(row) for row in np.flatnonzero(beaten >= ceil(ranks / 2) if ranks > 2 else beaten >= 1))


def late_steps(own_s: StepTimes) -> StepFlags:
    logs = np.log(np.maximum(own_s, STILL))
    peers = np.sort(logs, axis=0)[(len(logs) - 1) // 2]
    # Quantiles of the quick half: who is late every other step has a median between both.
    tenth, quarter = np.quantile(logs, (0.1, 0.25), axis=1)
    spread = float(np.median(quarter - tenth)) / QUARTER_TO_TENTH
    return np.asarray(logs - peers > max(LEAST_LATE, SPREADS * spread))


def spells(late: StepFlags) -> tuple[NDArray[np.int64], StepFlags]:
    """How many spells each row has, and whether one of them lasts."""
    begins = late & ~np.pad(late, ((0, 0), (1, 0)))[:, :-1]
    return begins.sum(axis=1), np.array([runs_of(row).max(initial=0) for row in late]) >= LASTING


def runs_of(flags: StepFlags) -> NDArray[np.int64]:
    """Lengths of the runs of True in one row.

    >>> runs_of(np.array([True, False, True, True])).tolist()
    [1, 2]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(int), [0]))))
    return np.asarray(edges[1::2] - edges[::2])


def unlikely(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """The fewest rows, at most half, on which so many of the spells would hardly fall if all rows were alike."""
    rows, total = np.argsort(-counts, kind="stable"), int(counts.sum())
    for size in range(1, len(counts) // 2 + 1):
        here = int(counts[rows[:size]].sum())
        chance = comb(len(counts), size) * stats.binom.sf(here - 1, total, size / len(counts))
        if total and chance <= CHANCE:
            return tuple(int(row) for row in rows[:size])
    return ()


def needed_spells(ranks: int) -> int:
    """Spells of one rank alone that are no chance any more.

    >>> needed_spells(4)
    10
    """
    return ceil(1 + np.log(CHANCE) / -np.log(ranks)) if ranks > 1 else 0
