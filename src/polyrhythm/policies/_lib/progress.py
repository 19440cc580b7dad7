"""How fast a run learns, from the losses of its mini-batches: what policies compare that choose among others.

**Rate** of a window of reports: minus the slope of the loss over time, divided by the mean loss, so 0.01 is one percent
less loss a second. The slope is that of Theil and Sen, the median of the slopes between all pairs of points, which a
few wild mini-batches do not move; a point is the mean of neighbouring reports, so that there are at most `POINTS`.

**Duel** of a challenger and who holds the place: the challenger's rate in one window less the mean of the holder's
rates in the windows before and after, in which whatever changes evenly over the run cancels.
"""

from dataclasses import dataclass, replace
from math import isfinite, sqrt
from statistics import median, median_low

POINTS = 24
"""Most points of a window; the cost of a slope grows with their square."""
LEAST_PAIRS = 4
"""Duels of which nothing is concluded."""


@dataclass(frozen=True, slots=True)
class LossWindow:
    """The losses of so many reports.

    Args:
        size: reports after which it is full.
        count: reports so far.
        points: (time, loss) of complete groups of neighbouring reports.
        time_sum, loss_sum, members: of the group that is not complete.

    Example:
        >>> window = LossWindow(4)
        >>> for time_s in range(4):
        ...     window = window.add(time_s, loss=10.0 - time_s)
        >>> window.full, window.level, round(window.rate, 4)
        (True, 8.5, 0.1176)
    """

    size: int
    count: int = 0
    points: tuple[tuple[float, float], ...] = ()
    time_sum: float = 0.0
    loss_sum: float = 0.0
    members: int = 0

    @property
    def full(self) -> bool:
        return self.count >= self.size

    def add(self, time_s: float, loss: float) -> "LossWindow":
        times, losses, members = self.time_sum + time_s, self.loss_sum + loss, self.members + 1
        if members < -(-self.size // POINTS):
            return LossWindow(self.size, self.count + 1, self.points, times, losses, members)
        return LossWindow(self.size, self.count + 1, (*self.points, (times / members, losses / members)))

    @property
    def level(self) -> float:
        return sum(loss for _, loss in self.points) / len(self.points) if self.points else 0.0

    @property
    def slope(self) -> float:
        """Median slope between two points, loss per second."""
        slopes = [
            (later_loss - loss) / (later_s - time_s)
            for at, (time_s, loss) in enumerate(self.points)
            for later_s, later_loss in self.points[at + 1 :]
            if later_s > time_s
        ]
        return median(slopes) if slopes else 0.0

    @property
    def rate(self) -> float:
        """Share of the loss that goes per second; negative where it rises, and not finite where the loss is not."""
        level = self.level
        if not isfinite(level):
            return -float("inf")
        return -self.slope / level if level > 0 else 0.0

    @property
    def spread(self) -> float:
        """Mean distance of the points from `level`, as a share of it."""
        level = self.level
        if not level > 0:
            return 0.0
        return sum(abs(loss - level) for _, loss in self.points) / len(self.points) / level


@dataclass(frozen=True, slots=True)
class Duel:
    """Differences of rates so far: their number, mean, and sum of squared distances from it (Welford).

    >>> duel = Duel().add(1.0).add(2.0).add(1.5).add(1.0)
    >>> duel.won(1.6), duel.lost(1.6)
    (True, False)
    """

    pairs: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, difference: float) -> "Duel":
        pairs = self.pairs + 1
        mean = self.mean + (difference - self.mean) / pairs
        return Duel(pairs, mean, self.squares + (difference - self.mean) * (difference - mean))

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite while nothing is concluded."""
        return sqrt(self.squares / (self.pairs - 1) / self.pairs) if self.pairs >= LEAST_PAIRS else float("inf")

    def won(self, z: float) -> bool:
        return self.mean > z * self.error

    def lost(self, z: float) -> bool:
        return self.mean < -z * self.error


@dataclass(frozen=True, slots=True)
class Match:
    """Several arms, of which one holds the place and the others challenge it, each in one window now and then.

    Args:
        duels: of each arm against the holder.
        holder: the arm that holds the place.
        playing: the arm in charge of the present window.
        windows: the holder's windows since the last trial.
        before: the holder's rate in its latest window; None at the start.
        trial: (arm, rate) of a trial that waits for the holder's next window.
        latest: the arm that was tried last.

    Example:
        >>> match = Match.of(2)
        >>> for rate in (0.5, 0.9, 0.5, 0.8, 0.5, 0.9, 0.5, 0.8, 0.5):
        ...     match = match.next(rate, every=2, z=1.5)
        >>> match.holder, match.duels[1].pairs
        (1, 0)
    """

    duels: tuple[Duel, ...]
    holder: int = 0
    playing: int = 0
    windows: int = 0
    before: float | None = None
    trial: tuple[int, float] | None = None
    latest: int = 0

    @classmethod
    def of(cls, arms: int) -> "Match":
        return cls((Duel(),) * arms)

    def next(self, rate: float, every: int, z: float) -> "Match":
        """After a window with this rate: every `every`-th one is a trial of the next arm that has not lost.

        Args:
            rate: of the arm that played.
            every: windows from trial to trial, at least 2.
            z: standard errors at which a duel is decided.
        """
        if self.playing != self.holder:
            return replace(self, playing=self.holder, trial=(self.playing, rate), windows=0)
        match = self if self.trial is None else self._judged(*self.trial, after=rate, z=z)
        if match.holder != self.holder:
            return match
        match = replace(match, before=rate, trial=None, windows=match.windows + 1)
        if match.windows < every - 1:
            return match
        arm = match._challenger(z)
        return match if arm is None else replace(match, playing=arm, latest=arm)

    def _judged(self, arm: int, rate: float, after: float, z: float) -> "Match":
        assert self.before is not None
        difference = rate - (self.before + after) / 2
        duel = self.duels[arm].add(difference if isfinite(difference) else 0.0)
        if duel.won(z):
            return Match((Duel(),) * len(self.duels), arm, arm, latest=self.latest)
        return replace(self, duels=(*self.duels[:arm], duel, *self.duels[arm + 1 :]))

    def _challenger(self, z: float) -> int | None:
        count = len(self.duels)
        others = [(self.latest + step) % count for step in range(1, count + 1)]
        return next((arm for arm in others if arm != self.holder and not self.duels[arm].lost(z)), None)


def healthy(durations: list[float], tolerance: float = 1.5) -> int:
    """How many workers keep pace: those whose step takes at most `tolerance` times the median, the lower one of two.

    >>> healthy([1.0, 1.1, 1.2, 4.0, float("inf")]), healthy([1.0, 3.0])
    (3, 1)
    """
    middle = median_low(durations)
    return sum(duration <= tolerance * middle for duration in durations)
