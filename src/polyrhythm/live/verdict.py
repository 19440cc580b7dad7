"""What stands out in a job now: a verdict, why, and what to do next, from what the page shows anyway.

It says what is plain at a glance. Where it takes the times of single steps, it points to ``polyrhythm doctor``.
"""

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from polyrhythm.telemetry.numbers import duration, share
from polyrhythm.telemetry.stragglers import StragglerKind

LEAST_STEPS = 20
"""Steps of every worker below which nothing is concluded."""

SILENT_S = 3.0
"""Seconds without a sign of life that are worth a word; heartbeats come twice a second."""

MUCH = 0.25
"""Share of the time from which waiting or transfers stand out."""

MANY = 0.2
"""Share of gradients from which dropping stands out."""


class LiveVerdict(msgspec.Struct, frozen=True):
    """One sentence, what it rests on, and what to do; `fine` says that nothing is wrong."""

    verdict: str
    why: str
    next_step: str
    fine: bool = False


class Pace(msgspec.Struct, frozen=True):
    """What a verdict needs to know of one worker; seconds are means over its latest steps."""

    rank: int
    steps: int
    compute_s: float
    transfer_s: float
    wait_s: float
    kind: StragglerKind
    late: float | None
    heard_s: float

    @property
    def own_s(self) -> float:
        """Until the exchange."""
        return self.compute_s + self.transfer_s

    @property
    def step_s(self) -> float:
        return self.own_s + self.wait_s


def verdict_of(paces: Sequence[Pace], loss: float | None, dropped: int, applied: int) -> LiveVerdict | None:
    """What stands out; None while there is too little to tell.

    Example:
        >>> slow = Pace(1, 90, 0.060, 0.0, 0.0, "persistent", 3.0, 0.1)
        >>> others = [Pace(rank, 90, 0.020, 0.0, 0.040, "", None, 0.1) for rank in (0, 2)]
        >>> verdict_of([slow, *others], 0.3, 0, 270).verdict
        'Rank 1 is slow in computing: 3x the median.'
    """
    if loss is not None and not math.isfinite(loss):
        return diverged(loss)
    silent = [pace for pace in paces if pace.heard_s > SILENT_S]
    if silent:
        return silence(max(silent, key=lambda pace: pace.heard_s))
    if not paces or min(pace.steps for pace in paces) < LEAST_STEPS:
        return None
    late = [pace for pace in paces if pace.late is not None]
    others = [pace for pace in paces if pace.late is None]
    behind = [pace for pace in late if not others or pace.own_s > median([each.own_s for each in others])]
    if behind:
        return slow(behind, others)
    if dropped > MANY * (dropped + applied):
        return wasted(dropped, applied)
    return balance(paces)


def diverged(loss: float) -> LiveVerdict:
    return LiveVerdict(
        f"The loss is {loss:g}.",
        "From then on nothing is learned.",
        "End the job; lower the learning rate or clip gradients, and start with --on-divergence rollback.",
    )


def silence(pace: Pace) -> LiveVerdict:
    return LiveVerdict(
        f"Rank {pace.rank} has been silent for {duration(pace.heard_s)}.",
        "Its process gives no sign of life, although a thread of its own does that while it computes.",
        "Wait for --hang-after, or kill it: the others go on with its samples.",
    )


def slow(late: Sequence[Pace], others: Sequence[Pace]) -> LiveVerdict:
    first = max(late, key=lambda pace: pace.late or 0.0)
    part = worst_part(first, others)
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    usual_s = median([getattr(pace, f"{part}_s") for pace in others or late])
    waits = part_share(others, "wait_s")
    verb = "computing" if part == "compute" else "transfers"
    return LiveVerdict(
        f"Rank {first.rank} is slow in {verb}: {first.late:.2g}x the median{more}.",
        f"{duration(getattr(first, f'{part}_s'))} a step against {duration(usual_s)}, {first.kind or 'since now'}; "
        f"the others wait {share(waits)} of their time.",
        remedy(verb, waits),
    )


def remedy(verb: str, waits: float) -> str:
    look = (
        "Look at what else runs on its host"
        if verb == "computing"
        else "Look at its link, or send less with --compress int8"
    )
    if waits < MUCH:
        return f"{look}; hardly anybody waits for it under this policy."
    return f"{look}. Until then switch to balanced or ssp:3, or drain it; polyrhythm doctor tells in which steps."


def worst_part(pace: Pace, others: Sequence[Pace]) -> str:
    usual = {part: median([getattr(each, part) for each in others or [pace]]) for part in ("compute_s", "transfer_s")}
    return max(usual, key=lambda part: getattr(pace, part) - usual[part]).removesuffix("_s")


def wasted(dropped: int, applied: int) -> LiveVerdict:
    return LiveVerdict(
        f"{share(dropped / (dropped + applied))} of the gradients come to nothing.",
        f"The policy drops {dropped:,} of {dropped + applied:,}.",
        "Loosen its bound, or switch to a policy that uses all of them, such as asp or ssp:3.",
    )


def balance(paces: Sequence[Pace]) -> LiveVerdict:
    computes, transfers, waits = (part_share(paces, part) for part in ("compute_s", "transfer_s", "wait_s"))
    parts = f"Workers compute {share(computes)} of their time, transfer {share(transfers)} and wait {share(waits)}."
    if transfers > MUCH:
        return LiveVerdict(
            "Transfers take long.", parts, "Send less: --compress int8, or exchange less often: local:8."
        )
    if waits > MUCH:
        return LiveVerdict(
            "Nobody is slow, and all wait.", parts, "Exchange less often: switch to local:8; or give each more to do."
        )
    return LiveVerdict("Nothing stands out.", parts, "Nothing to do.", fine=True)


def part_share(paces: Sequence[Pace], part: str) -> float:
    total = sum(pace.step_s for pace in paces)
    return sum(getattr(pace, part) for pace in paces) / total if total else 0.0
