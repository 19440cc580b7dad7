"""Arms that change the gradients: which are worth a trial, and what one may cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from polyrhythm.core import Policy
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.auto.arms import ArmOutlook
from polyrhythm.policies.auto.outlook import StepView, bsp_s, seconds
from polyrhythm.policies.auto.progress import (
    LEAST_TRIAL,
    MOST_REFERENCE,
    MOST_TRIAL,
    LossLine,
    LossPoint,
    LossPoints,
    TrialProgress,
    foreseen,
)
from polyrhythm.policies.diloco import DiLoCo
from polyrhythm.policies.k_async import KAsync
from polyrhythm.policies.local import LocalSGD
from polyrhythm.policies.selsync import SelSync
from polyrhythm.policies.ssp import SSP

WORTH = 1.15
"""How many times as fast an arm must be expected to learn, to be tried."""

OUTER_STEPS = 3
"""Steps of an outer optimizer by which a trial is expected to be over: its momentum is not yet what it will be."""


class Rung(NamedTuple):
    """An arm, and by how many rounds those who learn under it are apart, on average.

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


NO_POINTS = LossPoints()

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
    view: StepView, best_s: float, limit_s: float, reference: tuple[LossPoint, ...], choices: Iterator[Rung]
) -> tuple[ArmOutlook, float] | None:
    """The arm that is expected to learn fastest of those whose trial is affordable and would show it, if it is fast
    enough beside the best exact arm, and the progress that is expected of it.

    One whose speed nobody can tell is taken to be just fast enough, and tried for it.
    """
    fall, slowest_s = seen_fall(reference), bsp_s(view)
    found: list[tuple[ArmOutlook, float]] = []
    for rung in choices:
        known_s, likely = seconds(rung.policy, view), rung.likely(fall)
        round_s = known_s or best_s / WORTH / 1.01
        points = min(MOST_TRIAL, int(limit_s / round_s))
        if points < least_points(rung.policy):
            continue
        shown = foreseen(reference, points, likely)
        if known_s is None or shown.verdict(slowest_s / round_s, slowest_s / best_s) == "better":
            found.append((ArmOutlook(rung.policy, round_s, 0.0), likely))
    first = min(found, key=lambda one: one[0].round_s / one[1], default=None)
    return first if first and best_s >= WORTH * first[0].round_s / first[1] else None


def harsher(policy: Policy[Any]) -> set[str]:
    """Specs that need not be tried where this one has failed: those that go further the same way."""
    same = [rung.policy for rung in (*LOCAL, *asynchronous(2)) if type(rung.policy) is type(policy)]
    further = {one.spec for one in same if getattr(one, "h", 0) >= getattr(policy, "h", 0)}
    if isinstance(policy, LocalSGD):
        further |= {rung.policy.spec for rung in LOCAL if getattr(rung.policy, "h", 0) >= policy.h}
    if isinstance(policy, SSP | KAsync):
        further |= {ASP().spec}
    return further | {policy.spec}


@dataclass(frozen=True, slots=True)
class ArmTrial:
    """An arm on trial, or kept.

    Args:
        speed: samples a second over those of BSP, as expected.
        likely: the progress that was expected.
        exact: samples a second of the best exact arm over BSP's.
        limit_s: time that it may cost.
        reference: points of the exact policies before it.
        losses: its own.
        begun_s, begun: seconds of the job and samples at its beginning; the former None until it is in force.
        bsp_s: what BSP would have taken for its samples.
        kept: whether it has passed.
        credit: progress that its samples are booked with.
        undoable: whether it took over where all workers had the parameters, which can be kept there.
    """

    speed: float
    likely: float
    exact: float
    limit_s: float
    reference: tuple[LossPoint, ...]
    losses: LossPoints = NO_POINTS
    begun_s: float | None = None
    begun: int = 0
    bsp_s: float = 0.0
    kept: bool = False
    credit: float = 0.0
    undoable: bool = False

    def add(self, loss: float, samples: int, size: int) -> "ArmTrial":
        return replace(self, losses=self.losses.add(loss, samples, size, MOST_REFERENCE if self.kept else MOST_TRIAL))

    def passed(self, shown: TrialProgress) -> "ArmTrial":
        """What a sample surely brings beyond one of BSP counts, too."""
        return replace(self, kept=True, credit=max(0.0, min(max(1.0, shown.least), shown.likely)))


def seen_fall(reference: tuple[LossPoint, ...]) -> float:
    """By how much the logarithm of the loss falls in a round; 0 if not so surely that a trial of `LEAST_TRIAL` points
    can show something.
    """
    line = LossLine.through(reference)
    fall = -line.slope * (reference[-1].samples - reference[0].samples) / (len(reference) - 1)
    return fall if fall * LEAST_TRIAL > line.spread else 0.0
