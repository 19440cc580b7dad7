"""How far simulated runs are from real ones of the same scenario: time, order of the policies, staleness."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from polyrhythm.telemetry.result import RunResult

TIE = 0.05
"""Policies whose real times differ by less than this share of the longer one have no order."""

HEADINGS = ("policy", "real s", "simulated s", "error", "staleness real", "staleness simulated", "apart")


class Agreement(NamedTuple):
    """One policy in the simulator and the runtime, mean over its seeds.

    Args:
        real_s, simulated_s: duration of the whole workload.
        real_staleness, simulated_staleness: mean over all applied gradients; None if there were none.
        apart: see `distance`; None where either has no gradients.
    """

    policy: str
    real_s: float
    simulated_s: float
    real_staleness: float | None = None
    simulated_staleness: float | None = None
    apart: float | None = None

    @property
    def error(self) -> float:
        return self.simulated_s / self.real_s - 1


def agreements(real: Sequence[RunResult], simulated: Sequence[RunResult]) -> list[Agreement]:
    """Each policy that has finished in the simulator and the runtime, in the order of `real`."""
    pairs = []
    for policy in dict.fromkeys(result.policy for result in real):
        both = [[run for run in runs if (run.policy, run.status) == (policy, "ok")] for runs in (real, simulated)]
        if all(both):
            pairs.append(agreement(policy, *both))
    return pairs


def agreement(policy: str, real: Sequence[RunResult], simulated: Sequence[RunResult]) -> Agreement:
    real_s, simulated_s = (fmean(run.duration_s for run in runs) for runs in (real, simulated))
    first, second = (sum((Counter(run.staleness_counts) for run in runs), Counter[int]()) for runs in (real, simulated))
    apart = distance(first, second) if first and second else None
    return Agreement(policy, real_s, simulated_s, mean(first), mean(second), apart)


def mean(counts: Mapping[int, int]) -> float | None:
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else None


def distance(first: Mapping[int, int], second: Mapping[int, int]) -> float:
    """Total variation of two distributions: ``sum |p(s) - q(s)| / 2``, from 0, equal, to 1, disjoint.

    >>> distance({0: 3, 1: 1}, {0: 1, 1: 1})
    0.25
    """
    totals = sum(first.values()), sum(second.values())
    values = {*first, *second}
    return sum(abs(first.get(v, 0) / totals[0] - second.get(v, 0) / totals[1]) for v in values) / 2


def misplaced(pairs: Sequence[Agreement]) -> list[tuple[str, str]]:
    """Pairs of policies, the faster real one first, that the simulator has the other way round; see `TIE`.

    >>> misplaced([Agreement("bsp", 5.0, 5.1), Agreement("asp", 2.0, 5.2), Agreement("ssp:3", 2.01, 1.9)])
    [('asp', 'bsp')]
    """
    wrong = []
    for one, other in combinations(pairs, 2):
        fast, slow = sorted((one, other), key=lambda pair: pair.real_s)
        if fast.real_s < (1 - TIE) * slow.real_s and fast.simulated_s >= slow.simulated_s:
            wrong.append((fast.policy, slow.policy))
    return wrong


def rows(pairs: Sequence[Agreement]) -> list[list[str]]:
    return [
        [
            pair.policy,
            f"{pair.real_s:.3f}",
            f"{pair.simulated_s:.3f}",
            f"{pair.error:+.1%}",
            figure(pair.real_staleness),
            figure(pair.simulated_staleness),
            figure(pair.apart),
        ]
        for pair in pairs
    ]


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def verdict(pairs: Sequence[Agreement]) -> str:
    if not pairs:
        return "no policy has finished in the simulator and the runtime"
    worst = max(pairs, key=lambda pair: abs(pair.error))
    wrong = misplaced(pairs)
    order = "the order is right"
    if wrong:
        order = "the wrong way round: " + ", ".join(f"{fast} before {slow}" for fast, slow in wrong)
    return f"largest error {worst.error:+.1%} ({worst.policy}); {order} (times within {TIE:.0%} are ties)"
