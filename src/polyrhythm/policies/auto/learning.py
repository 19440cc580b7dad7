"""Arms that change the gradients: which are worth a trial, and what one may cost."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from polyrhythm.core import Policy
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.auto.outlook import StepView, bsp_s, seconds
from polyrhythm.policies.auto.progress import (
    LEAST_TRIAL,
    MOST_TRIAL,
    SURE,
    LossLine,
    LossPoint,
    foreseen,
)
from polyrhythm.policies.diloco import DiLoCo
from polyrhythm.policies.k_async import KAsync
from polyrhythm.policies.local import LocalSGD
from polyrhythm.policies.selsync import SelSync
from polyrhythm.policies.ssp import SSP

WORTH = 1.15
"""How many times as fast an arm must be expected to learn, to be tried."""

CAUTION = 8.0
"""How many times what is expected the delay of gradients may cost, where an arm is trusted to be faster."""

SERVED = 2.0
"""Exchanges of all that the transfers of a step may take as long as none is known: servers take in and give out."""

OUTER_STEPS = 3
"""Steps of an outer optimizer by which a trial is expected to be over: its momentum is not yet what it will be."""


class Rung(NamedTuple):
    """An arm, and by how many rounds those who learn under it are apart, on average; 0 if nobody knows.

    A gradient that comes so many rounds late, or from a replica that has gone so far by itself, is taken to bring less
    by as much as the loss falls meanwhile.
    """

    policy: Policy[Any]
    apart: float

    def likely(self, fall: float) -> float:
        """Progress that a sample is taken to bring before anything is known, if the logarithm of the loss falls by so
        much in a round.

        >>> round(Rung(LocalSGD(8), 4.0).likely(0.05), 2), round(Rung(DiLoCo(16), 8.0).likely(0.01), 2)
        (0.83, 1.63)
        """
        gain = outer_gain(self.policy) if isinstance(self.policy, DiLoCo) else 1.0
        return gain / (1 + gain * self.apart * max(0.0, fall))

    def least(self, fall: float) -> float:
        """Progress that a sample surely brings: what is late costs `CAUTION` times as much as is likely, and an outer
        optimizer brings nothing; 0 if nobody knows how far workers are apart.

        >>> round(Rung(LocalSGD(8), 4.0).least(0.05), 2)
        0.38
        """
        return min(1.0, self.likely(CAUTION * fall)) if self.apart else 0.0


class TrialChoice(NamedTuple):
    """An arm that may be tried.

    Args:
        round_s: seconds in which n * B samples count.
        likely: the progress that is expected of a sample.
        least: the progress by which it is trusted; 0 if its trial has to be paid for.
    """

    policy: Policy[Any]
    round_s: float
    likely: float
    least: float = 0.0

    @property
    def pace_s(self) -> float:
        """Seconds in which it is expected to bring what n * B samples bring under BSP."""
        return self.round_s / self.likely


class LossFall(NamedTuple):
    """By how much the logarithm of the loss falls in a round.

    Args:
        likely: as it seems.
        most: a standard error more.
        sure: whether the slope is surely more than nothing.
        shows: whether a trial of `LEAST_TRIAL` points can show something.
    """

    likely: float
    most: float
    sure: bool
    shows: bool

    @classmethod
    def of(cls, reference: tuple[LossPoint, ...]) -> "LossFall":
        line = LossLine.through(reference)
        apart, error = (reference[-1].samples - reference[0].samples) / (len(reference) - 1), math.sqrt(line.weight)
        likely, most = -line.slope * apart, (line.spread / error - line.slope) * apart
        return cls(likely, most, -line.slope * error > SURE * line.spread, likely * LEAST_TRIAL > line.spread)


class TrialLimits(NamedTuple):
    """What a trial may cost.

    Args:
        paid_s: time for one that has to be paid for.
        trusted_rounds: points until one of an arm that is trusted has to be ripe.
    """

    paid_s: float
    trusted_rounds: float = math.inf


def outer_gain(policy: DiLoCo) -> float:
    """How many times the mean delta the first outer steps are, as long as deltas point the same way.

    >>> round(outer_gain(DiLoCo(16)), 2), outer_gain(DiLoCo(16, lr=1.0, momentum=0.0))
    (1.88, 1.0)
    """
    velocity, moved = 0.0, 0.0
    for _ in range(OUTER_STEPS):
        velocity = policy.momentum * velocity + 1
        moved += policy.lr * (1 + policy.momentum * velocity if policy.nesterov else velocity)
    return moved / OUTER_STEPS


LOCAL = (
    *(Rung(LocalSGD(h), h / 2) for h in (2, 4, 8, 16, 32)),
    Rung(SelSync(lssr=0.8), 2.5),
    Rung(DiLoCo(16), 8.0),
)
"""Replicas that average every h steps are h / 2 from the last average in the mean."""


def asynchronous(workers: int) -> tuple[Rung, ...]:
    half = -(-workers // 2)
    return Rung(ASP(), 1.0), Rung(SSP(3), 1.0), Rung(KAsync(half), 0.75)


def rungs(allow: str, workers: int, also: Policy[Any] | None) -> Iterator[Rung]:
    """All that may be tried; what the user has added first."""
    if also is not None:
        yield Rung(also, 0.0)
    if allow != "exact":
        yield from LOCAL
    if allow == "async":
        yield from asynchronous(workers)


def least_points(policy: Policy[Any]) -> int:
    """Points before a trial is judged: a replica that has not been averaged twice looks worse than it is."""
    return max(LEAST_TRIAL, 2 * getattr(policy, "h", 0))


def worth_a_trial(
    view: StepView, best_s: float, limits: TrialLimits, reference: tuple[LossPoint, ...], choices: Iterator[Rung]
) -> TrialChoice | None:
    """The arm that is expected to learn fastest of those that can be trusted, or whose trial is affordable and would
    show it, if it is fast enough beside the best exact arm.
    """
    fall = LossFall.of(reference)
    if not fall.shows:
        return None
    each = (choice_of(rung, view, best_s, limits, reference, fall) for rung in choices)
    first = min((one for one in each if one), key=lambda one: one.pace_s, default=None)
    return first if first and best_s >= WORTH * first.pace_s else None


def choice_of(
    rung: Rung,
    view: StepView,
    best_s: float,
    limits: TrialLimits,
    reference: tuple[LossPoint, ...],
    fall: LossFall,
) -> TrialChoice | None:
    """What may be expected of an arm; None if it is neither trusted nor affordable.

    One whose speed nobody can tell is taken to be just fast enough, and tried for it.
    """
    known_s, likely, ripe = seconds(rung.policy, view), rung.likely(fall.likely), least_points(rung.policy)
    if known_s is None:
        round_s = best_s / WORTH / 1.01
        return TrialChoice(rung.policy, round_s, likely) if limits.paid_s >= ripe * round_s else None
    served = view if view.exchanged else view._replace(message_s=SERVED * view.exchange_s)
    least = rung.least(fall.most)
    sure = best_s * least >= WORTH * (seconds(rung.policy, served) or known_s) and fall.sure
    if sure and ripe <= limits.trusted_rounds:
        return TrialChoice(rung.policy, known_s, likely, least)
    points, slowest_s = min(MOST_TRIAL, int(limits.paid_s / known_s)), bsp_s(view)
    if points < ripe:
        return None
    shown = foreseen(reference, points, likely).verdict(slowest_s / known_s, slowest_s / best_s)
    return TrialChoice(rung.policy, known_s, likely) if shown == "better" else None


def harsher(policy: Policy[Any]) -> set[str]:
    """Specs that need not be tried where this one has failed: those that go further the same way."""
    same = [rung.policy for rung in (*LOCAL, *asynchronous(2)) if type(rung.policy) is type(policy)]
    further = {one.spec for one in same if getattr(one, "h", 0) >= getattr(policy, "h", 0)}
    if isinstance(policy, LocalSGD):
        further |= {rung.policy.spec for rung in LOCAL if getattr(rung.policy, "h", 0) >= policy.h}
    if isinstance(policy, SSP | KAsync):
        further |= {ASP().spec}
    return further | {policy.spec}
