"""The policies that auto chooses from, and by how much each is surely faster than BSP."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, ClassVar, NamedTuple

from polyrhythm.core import Policy, Traits
from polyrhythm.policies._lib.dealing.step_time import StepTime
from polyrhythm.policies.auto.evidence import JobTimes
from polyrhythm.policies.auto.outlook import StepView, balanced_rounds, bsp_rounds, bsp_s, k_sync_rounds, shares_of
from polyrhythm.policies.balanced import Balanced
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.k_sync import KSync

DOUBTS = 2.5
"""Standard errors of a gain that are taken away."""

LEAST_GAIN = 0.03
"""Share of a round that an arm must surely save."""


class ShareLimits(NamedTuple):
    """The largest share, the risk, BSP's time so far, what the job is ahead of it, and whether unequal shares pay."""

    most: float = math.inf
    risk: float = math.inf
    bsp_s: float = 0.0
    ahead_s: float = 0.0
    pays: bool = False


@dataclass(frozen=True, eq=False)
class Informed(Balanced):
    """Balanced BSP that begins with what is known already; in tables it is balanced, whatever that is."""

    traits: ClassVar[Traits] = Balanced.traits

    @property
    def spec(self) -> str:
        return Balanced(self.most).spec

    @property
    def recorded(self) -> str:
        return Balanced(self.most, self.known, self.risk, self.account).spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Informed) and other.most == self.most

    def __hash__(self) -> int:
        return hash((Informed, self.most))

    @classmethod
    def by(cls, evidence: JobTimes, limits: ShareLimits) -> "Informed":
        """With the time of everyone's steps, unless unequal shares do not pay."""
        last = max((worker for worker, _ in evidence.workers.items()), default=-1)
        each = [evidence.workers.get(worker) for worker in range(last + 1)]
        known = "/".join(known_of(one.time, evidence.batch_size) if one and one.steps else "-" for one in each)
        account = f"{limits.bsp_s:.6g}/{limits.ahead_s:.6g}/{evidence.exchange_s:.6g}"
        return cls(limits.most, known if limits.pays else "", limits.risk, account)


def known_of(time: StepTime, batch_size: int) -> str:
    """A worker's entry in `Balanced.known`."""
    return f"{time.expected_s(batch_size):.4g}~{time.spread:.2g}"


class ArmOutlook(NamedTuple):
    """An arm, the seconds in which n * B samples count under it, the share of BSP's time that it surely saves, and what
    there is to say of it.
    """

    policy: Policy[Any]
    round_s: float
    surely: float
    about: str = ""


def surely(bsp: Sequence[float], other: Sequence[float], exchange_s: float, doubts: float = DOUBTS) -> float:
    """Share of BSP's time that is saved, less doubt, by rounds of the other kind on the same steps."""
    apart = [before - after for before, after in zip(bsp, other, strict=True)]
    doubt = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
    return (fmean(apart) - doubts * doubt) / (fmean(bsp) + exchange_s)


def balanced_arm(evidence: JobTimes, view: StepView, limits: ShareLimits) -> ArmOutlook | None:
    """None where shares are equal, or unequal ones do not pay."""
    shares = shares_of(view, limits.most)
    if len(set(shares)) == 1 or not limits.pays:
        return None
    rounds = balanced_rounds(view, shares)
    sure = surely(bsp_rounds(view), rounds, view.exchange_s)
    about = f", shares {listed(shares)}"
    return ArmOutlook(Informed.by(evidence, limits), fmean(rounds) + view.exchange_s, sure, about)


def listed(shares: Sequence[int]) -> str:
    """As a line shows them.

    >>> listed((20, 20, 4))
    '20 20 4'
    """
    return " ".join(map(str, shares[:SHOWN])) + (" ..." if len(shares) > SHOWN else "")


def dealing_line(evidence: JobTimes, view: StepView, most: float) -> str:
    """Why shares are unequal from now on, and what they are to be."""
    shares, late = shares_of(view, most), evidence.late()
    gain = bsp_s(view) / (fmean(balanced_rounds(view, shares)) + view.exchange_s)
    return f"balanced: {late + '; ' if late else ''}{gain:.1f}x the throughput, shares {listed(shares)}"


def first_arrivals(view: StepView) -> Iterator[ArmOutlook]:
    """K-sync for every K of the larger half."""
    workers, bsp = len(view.steps), bsp_rounds(view)
    for k in range((workers + 1) // 2, workers):
        scale = workers / k
        rounds = [(round_s + view.exchange_s) * scale - view.exchange_s for round_s in k_sync_rounds(view, k)]
        sure = surely(bsp, rounds, view.exchange_s)
        yield ArmOutlook(KSync(k), fmean(rounds) + view.exchange_s, sure, f", the last {workers - k} dropped")


SHOWN = 16
"""Shares that a line shows."""


def exact_arms(evidence: JobTimes, view: StepView, limits: ShareLimits, *, drop: bool) -> list[ArmOutlook]:
    """Those that surely save something, whose gradients are BSP's in expectation; the best first."""
    balanced = balanced_arm(evidence, view, limits)
    arms = [arm for arm in (balanced, *(first_arrivals(view) if drop else ())) if arm and arm.surely >= LEAST_GAIN]
    return sorted(arms, key=lambda arm: arm.round_s)


REFERENCE = BSP()
"""Of a job that cannot run balanced BSP."""

EXACT = (BSP.name, Balanced.name)
"""Arms whose gradients are BSP's."""
