"""Arms that change the gradients: which are worth a trial, and what one may cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from polyrhythm.core import Policy
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.auto.arms import ArmOutlook
from polyrhythm.policies.auto.outlook import StepView, seconds
from polyrhythm.policies.auto.progress import (
    LEAST_TRIAL,
    MOST_REFERENCE,
    MOST_TRIAL,
    LossLine,
    LossPoint,
    LossPoints,
    TrialProgress,
)
from polyrhythm.policies.diloco import DiLoCo
from polyrhythm.policies.k_async import KAsync
from polyrhythm.policies.local import LocalSGD
from polyrhythm.policies.selsync import SelSync
from polyrhythm.policies.ssp import SSP

WORTH = 1.3
"""How many times as fast an arm must be expected to learn, to be tried."""


class Rung(NamedTuple):
    """An arm, and the progress that a sample is taken to bring before anything is known."""

    policy: Policy[Any]
    likely: float


NO_POINTS = LossPoints()

LOCAL = (
    *(Rung(LocalSGD(h), likely) for h, likely in ((2, 0.97), (4, 0.94), (8, 0.88), (16, 0.8), (32, 0.65))),
    Rung(SelSync(lssr=0.8), 0.85),
    Rung(DiLoCo(16), 0.7),
)


def asynchronous(workers: int) -> tuple[Rung, ...]:
    half = -(-workers // 2)
    return Rung(ASP(), 0.9), Rung(SSP(3), 0.92), Rung(KAsync(half), 0.95)


def rungs(allow: str, workers: int, also: Policy[Any] | None) -> Iterator[Rung]:
    """All that may be tried; what the user has added first."""
    if also is not None:
        yield Rung(also, 1.0)
    if allow != "exact":
        yield from LOCAL
    if allow == "async":
        yield from asynchronous(workers)


def least_points(policy: Policy[Any]) -> int:
    """Points before a trial is judged: a replica that has not been averaged twice looks worse than it is."""
    return max(LEAST_TRIAL, 2 * getattr(policy, "h", 0))


def worth_a_trial(
    view: StepView, best_s: float, limit_s: float, choices: Iterator[Rung], shut: set[str]
) -> ArmOutlook | None:
    """The affordable arm that is expected to learn fastest, if it is fast enough beside the best exact arm."""
    expected = [
        (round_s / rung.likely, ArmOutlook(rung.policy, round_s, 0.0))
        for rung in choices
        if rung.policy.spec not in shut and (round_s := seconds(rung.policy, view) or best_s / WORTH / 1.01)
        if least_points(rung.policy) * round_s <= limit_s
    ]
    first = min(expected, key=lambda item: item[0], default=None)
    return first[1] if first and best_s >= WORTH * first[0] else None


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
        speed: samples a second over those of the best exact arm, as expected.
        limit_s: time that it may cost.
        reference: points of the exact policies before it.
        losses: its own.
        begun_s, begun: seconds of the job and samples at its beginning; the former None until it is in force.
        kept: whether it has passed.
        credit: progress that its samples are booked with.
    """

    speed: float
    limit_s: float
    reference: tuple[LossPoint, ...]
    losses: LossPoints = NO_POINTS
    begun_s: float | None = None
    begun: int = 0
    kept: bool = False
    credit: float = 0.0

    def add(self, loss: float, samples: int, size: int) -> "ArmTrial":
        return replace(self, losses=self.losses.add(loss, samples, size, MOST_REFERENCE if self.kept else MOST_TRIAL))

    def passed(self, shown: TrialProgress) -> "ArmTrial":
        return replace(self, kept=True, credit=max(0.0, min(1.0, shown.likely)))


def sees_learning(reference: tuple[LossPoint, ...]) -> bool:
    """Whether the loss falls so surely that a trial of `LEAST_TRIAL` points can show something."""
    line = LossLine.through(reference)
    step = (reference[-1].samples - reference[0].samples) / (len(reference) - 1)
    return -line.slope * LEAST_TRIAL * step > line.spread
