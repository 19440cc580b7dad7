"""Whether a policy that changes the gradients still learns: its losses at equal samples beside those of exact policies.

A **point** is the mean loss of as many reports as there are workers. The reference is the line through the logarithms
of the last points under exact policies. The points of a trial's later half, at a mean of x samples, have a mean
logarithm of m; the line comes there at x' samples. With x0 the samples at which the trial began, its **progress** is
(x' - x0) / (x - x0): 1 if a sample has brought as much as it would have under the reference, 0 if it has brought
nothing. What that is worth follows from how much faster samples are.
"""

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeAlias

LEAST_REFERENCE, MOST_REFERENCE = 5, 24
"""Points of the reference."""

LEAST_TRIAL, KEPT_TRIAL, MOST_TRIAL = 6, 12, 72
"""Points of a trial before it is judged, before it is kept if its limit is not spent, and after which it must end."""

SURE = 1.5
"""Standard errors that are taken away from what a trial shows, for it or against it."""

LIKELY = 0.5
"""Standard errors that are taken away where it is enough that something is likely."""

UNLIKE = 0.2
"""How far the reference may be off of what it leads one to expect, because no loss falls evenly, as a share of that."""

WATCHED = 12
"""Points that are compared with as many before, of an arm that is kept."""

MOST_KEPT = 2 * MOST_REFERENCE
"""Points that are kept of an arm that is kept."""

TrialVerdict: TypeAlias = Literal["better", "worse", "open"]


class LossPoint(NamedTuple):
    """Samples of the job, and the logarithm of the loss."""

    samples: float
    log_loss: float


@dataclass(frozen=True, slots=True)
class LossPoints:
    """The losses of one stretch of the job.

    Args:
        points: complete ones, oldest first.
        total, count: of the point that is not complete.
        broken: whether a loss was not finite.

    Example:
        >>> losses = LossPoints()
        >>> for loss in (1.0, 3.0, 2.0):
        ...     losses = losses.add(loss, samples=8, size=2, most=4)
        >>> losses.points, losses.count
        ((LossPoint(samples=8, log_loss=0.69...),), 1)
    """

    points: tuple[LossPoint, ...] = ()
    total: float = 0.0
    count: int = 0
    broken: bool = False

    def add(self, loss: float, samples: int, size: int, most: int) -> "LossPoints":
        """With a further loss; `size` of them make a point, and the latest `most` points are kept."""
        if not math.isfinite(loss):
            return LossPoints(self.points, self.total, self.count, True)
        total, count = self.total + loss, self.count + 1
        if count < size:
            return LossPoints(self.points, total, count, self.broken)
        point = LossPoint(samples, math.log(max(total / count, 1e-12)))
        return LossPoints((*self.points[-most + 1 :], point), broken=self.broken)

    @property
    def rises(self) -> bool:
        """Whether the latest points are surely above those before."""
        if self.broken:
            return True
        if len(self.points) < 2 * WATCHED:
            return False
        before, now = self.points[-2 * WATCHED : -WATCHED], self.points[-WATCHED:]
        apart = fmean(p.log_loss for p in now) - fmean(p.log_loss for p in before)
        noise = math.hypot(*(stdev(p.log_loss for p in part) / math.sqrt(WATCHED) for part in (before, now)))
        return apart > 2 * SURE * noise

    @property
    def stands(self) -> bool:
        """Whether as many points as a reference has are no lower than as many before."""
        if len(self.points) < MOST_KEPT:
            return False
        before, now = self.points[-MOST_KEPT:-MOST_REFERENCE], self.points[-MOST_REFERENCE:]
        return fmean(p.log_loss for p in now) >= fmean(p.log_loss for p in before)


class LossLine(NamedTuple):
    """A least-squares line through points, and how far single points are off it."""

    samples: float
    log_loss: float
    slope: float
    spread: float
    weight: float
    points: int

    @classmethod
    def through(cls, points: tuple[LossPoint, ...]) -> "LossLine":
        """At least three points, not all at the same samples."""
        x, y = fmean(p.samples for p in points), fmean(p.log_loss for p in points)
        weight = sum((p.samples - x) ** 2 for p in points)
        slope = sum((p.samples - x) * (p.log_loss - y) for p in points) / weight
        off = sum((p.log_loss - y - slope * (p.samples - x)) ** 2 for p in points)
        return cls(x, y, slope, math.sqrt(off / (len(points) - 2)), weight, len(points))

    def at(self, samples: float) -> float:
        return self.log_loss + self.slope * (samples - self.samples)

    def error(self, samples: float) -> float:
        """Standard error of the line there."""
        return self.spread * math.sqrt(1 / self.points + (samples - self.samples) ** 2 / self.weight)


class TrialProgress(NamedTuple):
    """What a trial has shown: its progress, and the least and the most that it may be."""

    likely: float
    least: float
    most: float

    def verdict(self, speed: float, exact: float = 1.0) -> TrialVerdict:
        """With samples so many times as fast as under BSP: whether it is surely better than that, and more likely than
        not better than the best exact policy; or surely worse than that.

        Args:
            speed: samples a second over those of BSP.
            exact: those of the best exact policy over BSP's.
        """
        if self.least * speed > 1 and (self.likely - (self.likely - self.least) * LIKELY / SURE) * speed > exact:
            return "better"
        return "worse" if self.most * speed < exact else "open"

    def beside(self, known: "TrialProgress") -> "TrialProgress":
        """With what was known before, each weighed by its precision.

        >>> TrialProgress(1.0, 0.5, 1.5).beside(TrialProgress(0.5, 0.0, 1.0)).likely
        0.75
        >>> UNKNOWN.beside(TrialProgress(0.5, 0.0, 1.0))
        TrialProgress(likely=0.5, least=0.0, most=1.0)
        """
        precision, weight = (self.most - self.least) ** -2, (known.most - known.least) ** -2
        whole = precision + weight
        likely = (self.likely * precision + known.likely * weight) / whole
        doubt = whole**-0.5 / 2
        return TrialProgress(likely, likely - doubt, likely + doubt)

    def up_to(self, bound: float) -> "TrialProgress":
        """Where no sample is believed to bring more."""
        return TrialProgress(min(bound, self.likely), min(bound, self.least), self.most)


UNKNOWN = TrialProgress(0.0, -math.inf, math.inf)


def foreseen(reference: tuple[LossPoint, ...], points: int, likely: float) -> TrialProgress:
    """What a trial of so many points would show that goes as expected.

    >>> short, long = (tuple(LossPoint(8.0 * n, -0.1 * n + 0.1 * (n % 2)) for n in range(count)) for count in (6, 24))
    >>> [foreseen(points, 12, likely=0.9).verdict(speed) for points in (short, long) for speed in (1.2, 2.0)]
    ['open', 'open', 'open', 'better']
    """
    line, begun = LossLine.through(reference), reference[-1].samples
    apart = (begun - reference[0].samples) / (len(reference) - 1)
    samples = begun + 0.75 * points * apart
    expected = line.at(begun) - line.at(samples)
    if expected <= 0:
        return UNKNOWN
    doubt = math.hypot(line.spread / math.sqrt(points / 2), line.error(samples), UNLIKE * expected) / expected
    return TrialProgress(likely, likely - SURE * doubt, likely + SURE * doubt)


def progress(reference: tuple[LossPoint, ...], trial: LossPoints) -> TrialProgress:
    """What the trial that followed the reference has shown.

    >>> falling = tuple(LossPoint(8.0 * step, -0.1 * step + 0.001 * (step % 2)) for step in range(12))
    >>> trial = LossPoints(tuple(LossPoint(96.0 + 8.0 * step, -1.2 - 0.05 * step) for step in range(8)))
    >>> found = progress(falling, trial)
    >>> 0.1 < found.least < found.likely < found.most < 0.9, found.verdict(1.1), found.verdict(6.0)
    (True, 'worse', 'better')
    """
    if trial.broken:
        return TrialProgress(-math.inf, -math.inf, -math.inf)
    if len(reference) < LEAST_REFERENCE or len(trial.points) < LEAST_TRIAL:
        return UNKNOWN
    line, begun = LossLine.through(reference), reference[-1].samples
    later = trial.points[len(trial.points) // 2 :]
    samples, log_loss = fmean(p.samples for p in later), fmean(p.log_loss for p in later)
    noise = max(line.spread, stdev(p.log_loss for p in later)) / math.sqrt(len(later))
    expected = line.at(begun) - line.at(samples)
    doubt = math.hypot(noise, line.error(samples), UNLIKE * expected)
    fallen = line.at(begun) - log_loss
    if expected <= doubt:  # the reference itself does not surely fall: at most so far
        if fallen + SURE * doubt < 0:
            return TrialProgress(0.0, -math.inf, 0.0)
        most = max(expected, 0.0) + SURE * doubt
        least = (fallen - SURE * noise) / most
        return TrialProgress(fallen / most, least, math.inf) if least > 0 else UNKNOWN
    return TrialProgress(*((fallen + sure * SURE * doubt) / expected for sure in (0, -1, 1)))
