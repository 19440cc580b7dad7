"""How far a job is ahead of where BSP would have been."""

from dataclasses import dataclass, replace
from typing import NamedTuple

LOST_ROUNDS = 3.0
"""Rounds of BSP that an arm may lose of what it had saved before it goes."""

LOST_SHARE = 0.1
"""Share of what it has saved in all that it may lose beside."""

BIAS = 0.25
"""How far real rounds of BSP may be off those that are predicted."""


class TimeStretch(NamedTuple):
    """Where a stretch of time began: its time, the samples and the reports until then."""

    time_s: float
    samples: int
    reports: int


@dataclass(frozen=True, slots=True)
class SavedTime:
    """Times of the job and of its arm in force against BSP, seconds.

    Args:
        elapsed_s: of the job, as far as it can be compared.
        saved_s: by which it is ahead of BSP.
        arm_saved_s, arm_best_s, arm_gained_s: what the arm in force has saved, the most it has had, and all its gains.
        bias: time of real rounds of BSP over those predicted.
        arm_windows: stretches since the arm came into force; the first has what the change took, and is not the arm's.
        ventured_s: by which arms that change the gradients have put the job behind BSP.
    """

    elapsed_s: float = 0.0
    saved_s: float = 0.0
    arm_saved_s: float = 0.0
    arm_best_s: float = 0.0
    arm_gained_s: float = 0.0
    bias: float = 1.0
    arm_windows: int = 0
    ventured_s: float = 0.0

    def book(self, took_s: float, bsp_s: float, is_bsp: bool, credit: float = 1.0) -> "SavedTime":
        """A stretch of time, and what BSP would have taken for its samples; they count by `credit`."""
        if is_bsp:
            bias = self.bias
            if bsp_s > 0:
                bias += (min(max(took_s / bsp_s, 1 - BIAS), 1 + BIAS) - bias) / 4
            return replace(self, elapsed_s=self.elapsed_s + took_s, bias=bias)
        saved_s = bsp_s * self.bias * credit - took_s
        own_s = saved_s if self.arm_windows else 0.0
        arm_s = self.arm_saved_s + own_s
        return SavedTime(
            self.elapsed_s + took_s,
            self.saved_s + saved_s,
            arm_s,
            max(self.arm_best_s, arm_s),
            self.arm_gained_s + max(0.0, own_s),
            self.bias,
            self.arm_windows + 1,
            self.ventured_s,
        )

    def fresh(self) -> "SavedTime":
        """Another arm is in force."""
        return SavedTime(self.elapsed_s, self.saved_s, bias=self.bias, ventured_s=self.ventured_s)

    def credited(self, bsp_s: float) -> "SavedTime":
        """BSP would have taken at least so long, as predicted, for what the samples of a trial have brought."""
        return replace(self, saved_s=self.saved_s + max(0.0, bsp_s) * self.bias)

    def given_up(self) -> "SavedTime":
        """An arm that changes the gradients goes."""
        return replace(self, ventured_s=max(self.ventured_s, -self.saved_s))

    @property
    def ahead_s(self) -> float:
        """What unequal shares may lose: what arms that change the gradients have cost is not theirs to earn first.

        >>> SavedTime(saved_s=-3.0).ahead_s, SavedTime(saved_s=-3.0).given_up().ahead_s, SavedTime(saved_s=2.0).ahead_s
        (-3.0, 0.0, 2.0)
        """
        return max(self.saved_s, min(0.0, self.saved_s + self.ventured_s))

    def lost(self, round_s: float) -> bool:
        """Whether the arm in force has lost what it may."""
        allowed_s = LOST_ROUNDS * round_s + LOST_SHARE * self.arm_gained_s
        return self.arm_best_s - self.arm_saved_s > allowed_s


NOTHING_SAVED = SavedTime()
