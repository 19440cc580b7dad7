"""What balanced BSP would have made of the latest rounds, with shares that could be known before each of them.

Shares that follow from some steps fit these steps, also where everybody is late in turn; whether they fit the next ones
is another question. So each round is held against the shares that would have been dealt when it began.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import fmean, stdev
from typing import NamedTuple

from polyrhythm.policies._lib.dealing.shares import better_shares
from polyrhythm.policies._lib.dealing.step_time import StepTime

FORESEEN = 24
"""Latest rounds with unequal shares that count."""


DOUBTS = (1.84, 1.32, 1.2, 1.14, 1.11, 1.09, 1.08, 1.07)
"""Standard errors of their mean saving that are taken away, after 2, 3, ... rounds: Student's distribution has 16 %
above so many; of more rounds one.
"""


class ForeseenRound(NamedTuple):
    """Seconds of the slowest step under BSP, and under the shares that would have been dealt."""

    bsp_s: float
    dealt_s: float


@dataclass(frozen=True, slots=True)
class Foresight:
    """A pure value.

    Args:
        shares: of the round under way; empty where they are equal.
        rounds: the latest ones with unequal shares, oldest first.

    Example:
        >>> fast, slow, seen = StepTime(), StepTime(), Foresight()
        >>> for _ in range(2):
        ...     fast, slow = fast.after(8, 1.0), slow.after(8, 3.0)
        ...     seen = seen.after([fast, slow], [1.0, 3.0], 8, most=16, exchange_s=0.0)
        >>> seen.shares, seen.rounds
        ((12, 4), (ForeseenRound(bsp_s=3.0, dealt_s=1.5),))
    """

    shares: tuple[int, ...] = ()
    rounds: tuple[ForeseenRound, ...] = ()

    def after(
        self,
        times: Sequence[StepTime],
        steps: Sequence[float],
        batch_size: int,
        most: float,
        exchange_s: float,
        least: int = 1,
    ) -> "Foresight":
        """With a round whose steps took so long, as if each had had B samples, and times that know of them."""
        equal = (batch_size,) * len(times)
        shares, rounds = self.shares or equal, self.rounds
        if shares != equal:
            made = ForeseenRound(max(steps), *dealt_rounds(times, shares, [steps], batch_size))
            rounds = (*rounds[-FORESEEN + 1 :], made)
        shares = better_shares(times, shares, batch_size, most, exchange_s, least)
        return Foresight(() if shares == equal else shares, rounds)

    @property
    def pays(self) -> bool:
        """Whether these shares would surely have made the latest rounds shorter; a single one is taken as it is."""
        saved = [one.bsp_s - one.dealt_s for one in self.rounds]
        if len(saved) < 2:
            return sum(saved) > 0
        doubts = DOUBTS[len(saved) - 2] if len(saved) < len(DOUBTS) + 2 else 1.0
        return fmean(saved) > doubts * stdev(saved) / math.sqrt(len(saved))

    def anew(self) -> "Foresight":
        """Others are there, who begin with equal shares."""
        return Foresight((), self.rounds)


UNFORESEEN = Foresight()


def dealt_rounds(
    times: Sequence[StepTime], shares: Sequence[int], rounds: Iterable[Sequence[float]], batch_size: int
) -> list[float]:
    """When the slowest step of each round would have been through with its share.

    >>> dealt_rounds([StepTime(sample_s=1.0)] * 2, (12, 4), [(1.0, 3.0), (2.0, 2.0)], batch_size=8)
    [1.5, 3.0]
    """
    factors = [time.expected_s(share) / time.expected_s(batch_size) for time, share in zip(times, shares, strict=True)]
    return [max(map(mul, factors, steps)) for steps in rounds]
