"""How unequal shares may be, so that a worker that becomes slow just now cannot put the job behind BSP.

A worker with a larger share than B makes a round longer than one of BSP if it becomes slow in that round. Nobody can
know that before. So a share is only as large as the job can afford: if its worker were `FACTOR` times slower in the
next round, and all others no longer late, the time that is lost is no more than what the job is ahead of BSP and `risk`
of BSP's time so far. Shares begin small, and grow with the time that they save.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from polyrhythm.policies._lib.dealing.foresight import UNFORESEEN, Foresight
from polyrhythm.policies._lib.dealing.shares import through
from polyrhythm.policies._lib.dealing.step_time import StepTime

FACTOR = 4.0
"""How many times slower a worker is taken to become from one round to the next."""

NOISE = 2.0
"""Deviations of a step that come on top of that."""

SOON = 25
"""Rounds that a job is taken to have made at least: with a risk of 2 % it may be behind by half a round at first. Where
shares are in force only some rounds after they are decided, as many times more: short steps have many rounds.
"""

SAVED, LEAST_SAVED = 24, 8
"""Rounds in unequal shares whose savings count, and before which they tell nothing."""

BEYOND_ROUNDS = 8
"""Rounds in equal shares over which what they take beyond their slowest step is averaged."""


class GuardedStep(NamedTuple):
    """Seconds of a worker's step of this round with its transfers, of the same with B samples, and of its transfers."""

    step_s: float
    whole_s: float
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShareGuard:
    """A pure value.

    Args:
        risk: share of BSP's time by which the job may be behind it.
        bsp_s: what BSP would have taken so far.
        ahead_s: by which the job is ahead of it.
        beyond_s: what a round of BSP takes beyond its slowest step; None if nobody knows.
        foresight: what shares that were known before a round would have made of it.
        delay: rounds until shares that are decided are in force, as far as it is known.
        waited: rounds for which the shares that were decided last have not been in force.
        round_s: what BSP would have taken for the last round; 0 before the first.
        trusts: whether shares may be unequal before a round has shown that they pay: times are known beforehand.
        saved: seconds that the latest rounds in unequal shares have saved; each round in equal ones forgets one.

    Example:
        >>> times = [StepTime(sample_s=1 / 8), StepTime(sample_s=3 / 8)]
        >>> guard = ShareGuard(risk=0.02, bsp_s=12.0, trusts=True)
        >>> guard.afforded(times, (12, 4), 8), guard.after([GuardedStep(1.2, 1.0), GuardedStep(2.5, 3.0)], 3.0).ahead_s
        ((8, 8), 0.5)
    """

    risk: float
    bsp_s: float = 0.0
    ahead_s: float = 0.0
    beyond_s: float | None = None
    foresight: Foresight = UNFORESEEN
    delay: int = 0
    waited: int = 0
    round_s: float = 0.0
    saved: tuple[float, ...] = ()
    trusts: bool = False

    @classmethod
    def begun(cls, risk: float, account: Sequence[float], trusts: bool = False) -> "ShareGuard | None":
        """From BSP's time so far, what the job is ahead of it, and perhaps what a round takes beyond its slowest step;
        none without a limit.
        """
        bsp_s, ahead_s, *beyond_s = account
        beyond = beyond_s[0] if beyond_s else None
        return None if risk == math.inf else cls(risk, bsp_s, ahead_s, beyond, trusts=trusts)

    @property
    def spare_s(self) -> float:
        """Time that the job can afford to lose."""
        return self.ahead_s + self.risk * max(self.bsp_s, SOON * (1 + self.delay) * self.round_s)

    def after(self, steps: Sequence[GuardedStep], round_s: float, delayed: bool = False) -> "ShareGuard":
        """With a round of these steps; `delayed` says that its shares were not those that were decided last."""
        slowest_s, beyond_s = max(step.step_s for step in steps), self.beyond_s
        saved_s, saved, waited = 0.0, self.saved[1:], self.waited + 1 if delayed else 0
        rest_s = max(0.0, round_s - slowest_s)
        if any(step.step_s != step.whole_s for step in steps):
            saved_s = max(step.whole_s for step in steps) - slowest_s
            # Links that all share take longer when all come together. The first round has what the change took.
            saved_s += beyond_s - rest_s if beyond_s is not None and self.round_s else 0.0
            saved = (*self.saved[-SAVED + 1 :], saved_s)
        elif self.round_s or beyond_s is None:
            beyond_s = rest_s if beyond_s is None else beyond_s + (rest_s - beyond_s) / BEYOND_ROUNDS
        bsp_s, delay = max(0.0, round_s + saved_s), max(self.delay, waited)
        known = self.ahead_s + saved_s, beyond_s, self.foresight, delay, waited, bsp_s, saved, self.trusts
        return ShareGuard(self.risk, self.bsp_s + bsp_s, *known)

    def foreseen(
        self,
        times: Sequence[StepTime],
        steps: Sequence[float],
        batch_size: int,
        most: float,
        exchange_s: float,
        least: int = 1,
    ) -> "ShareGuard":
        """With what shares would have made of the round; see `Foresight.after`."""
        foresight = self.foresight.after(times, steps, batch_size, most, exchange_s, least)
        return replace(self, foresight=foresight)

    def anew(self) -> "ShareGuard":
        """Others are there."""
        return replace(self, foresight=self.foresight.anew())

    @property
    def pays(self) -> bool:
        """Whether unequal shares have made the latest rounds shorter, and those known before would have made them."""
        foreseen = self.foresight.pays or (self.trusts and not self.foresight.rounds)
        return foreseen and (len(self.saved) < LEAST_SAVED or fmean(self.saved) > 0)

    def afforded(self, times: Sequence[StepTime], shares: tuple[int, ...], batch_size: int) -> tuple[int, ...]:
        """As much of these shares as the job can afford."""
        equal = (batch_size,) * len(shares)
        if shares == equal or not self.pays:
            return equal
        spare_s = self.spare_s / (1 + self.delay)
        most = [min(share, largest(time, batch_size, spare_s)) for time, share in zip(times, shares, strict=True)]
        if all(share <= limit for share, limit in zip(shares, most, strict=True)):
            return shares
        return relieved(times, shares, most, batch_size)


def largest(time: StepTime, batch_size: int, spare_s: float) -> int:
    """Share with which a worker that becomes slow makes the round no more than so much longer than one of BSP.

    >>> largest(StepTime(sample_s=1.0, spread=0.0), 8, spare_s=8.0)
    10
    """
    factor = FACTOR * (1 + NOISE * time.spread)
    return max(batch_size, through(time, time.expected_s(batch_size) + max(0.0, spare_s) / factor, math.inf))


def relieved(times: Sequence[StepTime], shares: Sequence[int], most: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Shares on the way from equal ones to these, where nobody has more than `most`: the slowest are relieved first.

    >>> times = [StepTime(sample_s=1.0), StepTime(sample_s=1.0), StepTime(sample_s=4.0)]
    >>> relieved(times, (11, 11, 2), (9, 9, 8), batch_size=8)
    (9, 9, 6)
    """
    given = sum(max(0, limit - batch_size) for limit in most)
    result = [
        max(batch_size, limit) if share > batch_size else batch_size for share, limit in zip(shares, most, strict=True)
    ]
    late = [(-time.expected_s(batch_size), p) for p, time in enumerate(times) if shares[p] < batch_size]
    heapq.heapify(late)
    for _ in range(given):
        _, worker = heapq.heappop(late)
        result[worker] -= 1
        if result[worker] > shares[worker]:
            heapq.heappush(late, (-times[worker].expected_s(result[worker]), worker))
    return tuple(result)
