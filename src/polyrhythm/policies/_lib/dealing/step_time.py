"""How long a worker's steps take at any size of its mini-batch, learned from steps of different sizes.

The model is ``t(b) = a + c * b``: a fixed part and a part for each sample. It is a least-squares line that forgets, and
that is drawn towards a = 0 (time in proportion to samples) as far as the sizes that were seen cannot tell the parts
apart. A worker that has become slower or faster for good is found by a cumulative sum of how far steps are off (Page
1954): what was learned before the change then no longer counts.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

KEEP = 0.98
"""Weight of all steps so far at each further one: some fifty count."""

SPREAD, SPREAD_STEPS = 0.1, 4.0
"""Relative deviation of a step that is expected before any is seen, and for how many steps that counts."""

LEAST_SPREAD = 0.01
"""Relative deviation that is allowed for in the steadiest worker."""

FIXED = 0.3
"""Deviation of the fixed part, relative to a step, that is expected before sizes tell it."""

CLIP, SLACK, CHANGED = 4.0, 1.0, 8.0
"""In deviations: how far off a step may count, what is not counted of it, and the sum that means a change. So one odd
step changes nothing, and of a large change the third step tells.
"""

SHORTEST_S = 1e-9

ROUNDING = 1e-9
"""Relative variance of sizes that are all the same."""


class StepSums(NamedTuple):
    """Weighted sums over steps: their number, and those of sizes and times and of their products."""

    steps: float = 0.0
    b: float = 0.0
    bb: float = 0.0
    t: float = 0.0
    bt: float = 0.0

    def plus(self, b: float, t: float) -> "StepSums":
        return self.repeated(b, t, 1)

    def repeated(self, b: float, t: float, times: int) -> "StepSums":
        """The same, so often, to the bit, without all that lie between."""
        steps, sum_b, sum_bb, sum_t, sum_bt = self
        bb, bt = b * b, b * t
        for _ in range(times):
            steps, sum_b, sum_bb = KEEP * steps + 1, KEEP * sum_b + b, KEEP * sum_bb + bb
            sum_t, sum_bt = KEEP * sum_t + t, KEEP * sum_bt + bt
        return StepSums(steps, sum_b, sum_bb, sum_t, sum_bt)

    def line(self, spread: float) -> tuple[float, float, float]:
        """Seconds of the fixed part and of a sample, if single steps deviate by this share of their time; and by how
        many seconds the fixed part may still be another.
        """
        size, time_s = self.b / self.steps, self.t / self.steps
        variance = self.bb / self.steps - size * size
        if variance < ROUNDING * size * size:
            return 0.0, time_s / size, FIXED * time_s
        told = self.steps * variance
        slope = (self.bt / self.steps - size * time_s) / variance
        trust = told / (told + (spread / FIXED) ** 2 * self.bb / self.steps)
        fixed = min(max(trust * (time_s - slope * size), 0.0), 0.95 * time_s)
        return fixed, (time_s - fixed) / size, FIXED * time_s * math.sqrt(1 - trust)


NO_STEPS = StepSums()


@dataclass(frozen=True, slots=True)
class StepTime:
    """What is known of one worker.

    Args:
        sums: of the steps since it changed last.
        off: squared relative deviations of these steps from what was expected.
        spread: relative deviation of a single step.
        transfer_s: of a step, whatever its size.
        fixed_s, sample_s: of the line.
        unsure_s: by how much the fixed part may be another, as far as sizes have told it.
        slower, faster: cumulative sums of the deviations.
        since_slower, since_faster: the steps since each was zero.

    Example:
        >>> time = StepTime()
        >>> for samples, step_s in [(8, 1.0), (8, 1.0), (4, 0.6), (4, 0.6)]:  # 0.2 and 0.1 for each sample
        ...     time = time.after(samples, step_s)
        >>> round(time.fixed_s, 2), round(time.sample_s, 2)
        (0.17, 0.1)
    """

    sums: StepSums = NO_STEPS
    off: float = 0.0
    spread: float = SPREAD
    transfer_s: float = 0.0
    fixed_s: float = 0.0
    sample_s: float = 0.0
    unsure_s: float = 0.0
    slower: float = 0.0
    faster: float = 0.0
    since_slower: StepSums = NO_STEPS
    since_faster: StepSums = NO_STEPS

    @property
    def steps(self) -> float:
        return self.sums.steps

    def doubt(self, usual: float = 0.0) -> float:
        """Relative standard error of the time that is expected, where a step `usually` deviates by so much."""
        return max(self.spread, usual) / math.sqrt(max(1.0, self.steps))

    def expected_s(self, samples: float) -> float:
        """Time of a step with so many samples, with its transfers."""
        return self.transfer_s + self.computing_s(samples)

    def computing_s(self, samples: float) -> float:
        """The same without its transfers, which no share makes shorter."""
        return self.fixed_s + self.sample_s * samples

    def after(self, samples: int, step_s: float, transfer_s: float = 0.0) -> "StepTime":
        """With a further step."""
        step_s = max(step_s, SHORTEST_S)
        if not self.steps:
            return learned(NO_STEPS.plus(samples, step_s), 0.0, transfer_s)
        expected_s, spread = self.fixed_s + self.sample_s * samples, self.spread
        unsure_s = self.unsure_s * (1 - samples * self.sums.steps / self.sums.b)
        off = (step_s - expected_s) / math.hypot(spread * expected_s, unsure_s)
        counted = min(max(off, -CLIP), CLIP)
        slower, since_slower = cumulated(self.slower, self.since_slower, counted, samples, step_s)
        faster, since_faster = cumulated(self.faster, self.since_faster, -counted, samples, step_s)
        deviation = (counted * spread) ** 2
        if slower > CHANGED or faster > CHANGED:
            return self._changed(since_slower if slower > CHANGED else since_faster, deviation, transfer_s)
        likely_s = step_s if counted == off else expected_s * (1 + counted * spread)
        sums, off = self.sums.plus(samples, likely_s), KEEP * self.off + deviation
        return learned(sums, off, self._transfer_s(sums, transfer_s), slower, faster, since_slower, since_faster)

    def _changed(self, since: StepSums, deviation: float, transfer_s: float) -> "StepTime":
        """What has been learned since the change, about as unsteady as before: many a change is none."""
        mean = (SPREAD_STEPS * SPREAD**2 + self.off + deviation) / (SPREAD_STEPS + self.steps + 1)
        return learned(since, mean * since.steps, self._transfer_s(since, transfer_s))

    def _transfer_s(self, sums: StepSums, transfer_s: float) -> float:
        return self.transfer_s + (transfer_s - self.transfer_s) / max(1.0, sums.steps)


def learned(sums: StepSums, off: float, transfer_s: float, *watched: Any) -> StepTime:
    """What steps tell; `watched` are the cumulative sums, which start anew without."""
    spread = max(LEAST_SPREAD, math.sqrt((SPREAD_STEPS * SPREAD**2 + off) / (SPREAD_STEPS + sums.steps)))
    return StepTime(sums, off, spread, transfer_s, *sums.line(spread), *watched)


def known_step_time(samples: int, step_s: float, spread: float, steps: int) -> StepTime:
    """What so many equal steps would have told, if single ones deviate by this share of their time.

    >>> time = known_step_time(8, 2.0, spread=0.3, steps=16)
    >>> round(time.expected_s(8), 3), round(time.spread, 3)
    (2.0, 0.3)
    """
    sums = NO_STEPS.repeated(samples, step_s, steps)
    return learned(sums, spread**2 * (SPREAD_STEPS + sums.steps) - SPREAD_STEPS * SPREAD**2, 0.0)


def cumulated(total: float, since: StepSums, off: float, samples: int, step_s: float) -> tuple[float, StepSums]:
    """The cumulative sum after a step that is `off` by so many deviations, and the steps since it was zero."""
    total += off - SLACK
    return (0.0, NO_STEPS) if total <= 0 else (total, since.plus(samples, step_s))
