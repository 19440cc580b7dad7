"""An arm that changes the gradients, on trial or kept: what it has shown, and what follows from that."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from polyrhythm.policies.auto.progress import (
    KEPT_TRIAL,
    LEAST_TRIAL,
    MOST_KEPT,
    MOST_TRIAL,
    UNKNOWN,
    LossLine,
    LossPoint,
    LossPoints,
    TrialProgress,
    progress,
)

DOUBT = 0.5
"""How far what is expected of an arm may be off, as a share of it, when its losses are weighed against that."""

FORETOLD_ROUNDS = 2
"""Rounds of a trial after which its speed is foretold from what its workers need to exchange."""

TIMED_ROUNDS = 4
"""Rounds of a trial after which its speed is known, but for `SETTLING`."""

SETTLING = 2.0
"""Rounds by which a trial may be late because its workers start anew."""

TrialState: TypeAlias = Literal["open", "kept", "rises", "worse", "slow", "spent"]

NO_POINTS = LossPoints()


class TrialPace(NamedTuple):
    """How a trial goes on.

    Args:
        speed: samples a second over those of BSP.
        foretold: the same as foretold by now; None of an arm of which nobody can tell it.
        rounds: n * B samples that it has made.
        spent_s: what it has taken.
    """

    speed: float
    foretold: float | None
    rounds: float
    spent_s: float

    def slow(self, likely: float, exact: float) -> bool:
        """Whether the samples cannot be fast enough, if they bring what is likely.

        >>> [TrialPace(1.2, 0.9, rounds, 0.0).slow(likely=1.0, exact=1.0) for rounds in (1, 3)]
        [False, True]
        >>> [TrialPace(0.7, None, rounds, 0.0).slow(likely=1.0, exact=1.0) for rounds in (3, 4, 9)]
        [False, False, True]
        """
        if self.foretold and self.rounds >= FORETOLD_ROUNDS and self.foretold * likely < 1:
            return True
        settled = self.speed * (1 + SETTLING / self.rounds) if self.rounds >= TIMED_ROUNDS else exact
        return settled * max(1.0, likely) < exact


@dataclass(frozen=True, slots=True)
class ArmTrial:
    """An arm on trial, or kept.

    Args:
        speed: samples a second over those of BSP, as expected.
        likely: the progress that was expected.
        least: the progress by which it is trusted; 0 if its trial has to be paid for.
        exact: samples a second of the best exact arm over BSP's.
        limit_s: time that it may cost if it is not trusted.
        reference: points of the exact policies before it.
        ripe: points before which only a loss that rises is told.
        losses: its own.
        begun_s, begun: seconds of the job and samples at its beginning; the former None until it is in force.
        bsp_s: what BSP would have taken for its samples.
        kept: whether it has passed.
        credit: progress that its samples are booked with.
        undoable: whether it took over where all workers had the parameters, which can be kept there.
    """

    speed: float
    likely: float
    least: float
    exact: float
    limit_s: float
    reference: tuple[LossPoint, ...]
    ripe: int = LEAST_TRIAL
    losses: LossPoints = NO_POINTS
    begun_s: float | None = None
    begun: int = 0
    bsp_s: float = 0.0
    kept: bool = False
    credit: float = 0.0
    undoable: bool = False

    def add(self, loss: float, samples: int, size: int) -> "ArmTrial":
        return replace(self, losses=self.losses.add(loss, samples, size, MOST_KEPT if self.kept else MOST_TRIAL))

    def passed(self, shown: TrialProgress) -> "ArmTrial":
        """What a sample surely brings beyond one of BSP counts, too."""
        return replace(self, kept=True, credit=max(0.0, min(max(1.0, shown.least), shown.likely)))

    @property
    def trusted(self) -> bool:
        return self.least > 0

    @property
    def seen(self) -> TrialProgress:
        """What its losses show by themselves."""
        seen = progress(self.reference, self.losses)
        return seen if len(self.losses.points) >= self.ripe or seen.most <= 0 else UNKNOWN

    @property
    def shown(self) -> TrialProgress:
        """The same beside what is expected if it is trusted, and no more than theory lets a sample bring."""
        shown = self.seen
        if shown.most <= 0 or not self.trusted:
            return shown
        doubt = max(self.likely - self.least, DOUBT * self.likely)
        expected = TrialProgress(self.likely, self.likely - doubt, self.likely + doubt)
        return shown.beside(expected).up_to(max(1.0, self.likely))

    @property
    def breaks_out(self) -> bool:
        """Whether the last two points are above all before the trial, by more than single ones are off the line."""
        bound = max(point.log_loss for point in self.reference) + LossLine.through(self.reference).spread
        return len(self.losses.points) > 1 and all(point.log_loss > bound for point in self.losses.points[-2:])

    def outcome(self, shown: TrialProgress, pace: TrialPace) -> TrialState:
        """What was expected may lengthen a trial; its losses have to pass it."""
        points = len(self.losses.points)
        over, spent = points >= MOST_TRIAL, not self.trusted and pace.spent_s > self.limit_s
        seen = self.seen
        if shown.most <= 0 or self.breaks_out:
            return "rises"
        if pace.slow(self.likely, self.exact):
            return "slow"
        verdict = shown.verdict(pace.speed, self.exact)
        if seen.verdict(pace.speed, self.exact) == "worse" or (verdict == "worse" and seen != UNKNOWN):
            return "worse"
        better = verdict == "better" and (spent or points >= max(self.ripe, KEPT_TRIAL))
        likely = over and self.trusted and shown.likely * pace.speed > self.exact
        if (better or likely) and seen.least > 0 and seen.likely * pace.speed > self.exact:
            return "kept"
        return "spent" if spent or over else "open"


def why_not(outcome: TrialState, shown: TrialProgress, pace: TrialPace, expected: float) -> str:
    """Why an arm is given up, in words."""
    match outcome:
        case "worse":
            return f"a sample brings {max(0.0, shown.likely):.2f} of what it brings under bsp"
        case "slow":
            speed = min(pace.speed, pace.foretold or pace.speed)
            return f"it has {speed:.1f}x the throughput of bsp, and not {expected:.1f}x"
        case _:
            return f"{pace.spent_s:.3g} s have not shown that it is better"
