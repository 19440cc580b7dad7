"""What a policy would take on this job: the simulator's model in closed form, on the steps that were really made.

Each function replays the latest measured steps of all workers under one kind of policy, round by round, with the
measured time of an exchange, and returns the seconds in which n * B samples count. Where no link is shared this is what
`polyrhythm.sim` comes to on the same steps.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from polyrhythm.core import Policy
from polyrhythm.policies._lib.dealing.foresight import dealt_rounds
from polyrhythm.policies._lib.dealing.shares import better_shares
from polyrhythm.policies._lib.dealing.step_time import StepTime
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.balanced import Balanced
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.diloco import DiLoCo
from polyrhythm.policies.k_async import KAsync
from polyrhythm.policies.k_sync import FirstArrivals
from polyrhythm.policies.local import LocalSGD
from polyrhythm.policies.post_local import PostLocalSGD
from polyrhythm.policies.selsync import SelSync
from polyrhythm.policies.ssp import SSP


class StepView(NamedTuple):
    """What is known of the job's time.

    Args:
        steps: latest steps of each worker, oldest first and as many of each: seconds of a mini-batch of B samples.
        times: how each worker's steps take longer with more samples.
        batch_size: B.
        exchange_s: of a round that ends in an exchange among all.
        message_s: there and back of a worker that exchanges alone; unknown, it is taken to be as long as an exchange.
        least: smallest share that may be dealt.
        exchanged: whether a worker has exchanged alone, so that `message_s` is known.
    """

    steps: Sequence[Sequence[float]]
    times: Sequence[StepTime]
    batch_size: int
    exchange_s: float
    message_s: float
    least: int = 1
    exchanged: bool = False

    @property
    def rounds(self) -> list[tuple[float, ...]]:
        return list(zip(*self.steps, strict=True))


def bsp_rounds(view: StepView) -> list[float]:
    """Without the exchange, like all of these."""
    return [max(steps) for steps in view.rounds]


def bsp_s(view: StepView) -> float:
    """A round takes as long as its slowest step.

    >>> view = StepView([[1.0, 1.0], [2.0, 4.0]], [], 8, exchange_s=0.5, message_s=0.5)
    >>> bsp_s(view), k_sync_s(view, 1), local_s(view, 2)
    (3.5, 3.0, 3.25)
    """
    return fmean(bsp_rounds(view)) + view.exchange_s


def k_sync_rounds(view: StepView, k: int) -> list[float]:
    """A round takes as long as its k-th step."""
    return [sorted(steps)[k - 1] for steps in view.rounds]


def k_sync_s(view: StepView, k: int) -> float:
    """Only k mini-batches of each round count."""
    k = min(k, len(view.steps))
    return (fmean(k_sync_rounds(view, k)) + view.exchange_s) * len(view.steps) / k


def shares_of(view: StepView, most: float) -> tuple[int, ...]:
    """What balanced BSP would deal now."""
    equal = (view.batch_size,) * len(view.times)
    return better_shares(view.times, equal, view.batch_size, most, view.exchange_s, view.least)


def balanced_rounds(view: StepView, shares: Sequence[int]) -> list[float]:
    """A round takes as long as its slowest share."""
    return dealt_rounds(view.times, shares, view.rounds, view.batch_size)


def local_s(view: StepView, h: int) -> float:
    """A round takes as long as the slowest h steps, and ends in one exchange."""
    count = len(view.steps[0])
    length = min(h, count)
    ends = range(length, count + 1, length)
    sums = [max(sum(steps[end - length : end]) for steps in view.steps) for end in ends]
    return fmean(sums) / length + view.exchange_s / h


def asp_s(view: StepView) -> float:
    """Everyone steps at its own speed."""
    return len(view.steps) / sum(1 / (fmean(steps) + view.message_s) for steps in view.steps)


def ssp_s(view: StepView, s: float) -> float:
    """Step k of a worker begins when its own last one has ended, and step k - s - 1 of everyone."""
    count = len(view.steps[0])
    ends: list[list[float]] = [[0.0] * len(view.steps)]
    for number in range(3 * count):
        behind = number - int(min(s, 3 * count))
        gate = max(ends[behind]) if behind >= 0 else 0.0
        ends.append(
            [
                max(before, gate) + steps[number % count] + view.message_s
                for before, steps in zip(ends[-1], view.steps, strict=True)
            ]
        )
    # The first third is how they part.
    halves = [sum(row) / len(row) for row in (ends[count], ends[-1])]
    return (halves[1] - halves[0]) / (2 * count)


def k_async_s(view: StepView, k: int) -> float:
    """A worker reads again when it is one of k that have come together."""
    workers, count = len(view.steps), len(view.steps[0])
    k = min(k, workers)
    made = [0] * workers
    coming = [(steps[0] + view.message_s, worker) for worker, steps in enumerate(view.steps)]
    heapq.heapify(coming)
    held: list[int] = []
    updates: list[float] = []
    while len(updates) < count * workers // k + 2:
        now_s, worker = heapq.heappop(coming)
        held.append(worker)
        if len(held) < k:
            continue
        updates.append(now_s)
        for member in held:
            made[member] += 1
            step_s = view.steps[member][made[member] % count]
            heapq.heappush(coming, (now_s + step_s + view.message_s, member))
        held = []
    settled = updates[len(updates) // 3 :]
    return fmean(after - before for before, after in pairwise(settled)) * workers / k


Prediction: TypeAlias = Callable[[Any, StepView], float]

KINDS: tuple[tuple[type[Policy[Any]], Prediction], ...] = (
    (BSP, lambda _, view: bsp_s(view)),
    (Balanced, lambda policy, view: fmean(balanced_rounds(view, shares_of(view, policy.most))) + view.exchange_s),
    (FirstArrivals, lambda policy, view: k_sync_s(view, policy.quota(len(view.steps)))),
    (LocalSGD, lambda policy, view: local_s(view, policy.h)),
    (DiLoCo, lambda policy, view: local_s(view, policy.h)),
    (PostLocalSGD, lambda policy, view: local_s(view, policy.h)),
    (SelSync, lambda _, view: bsp_s(view)),
    (ASP, lambda _, view: asp_s(view)),
    (SSP, lambda policy, view: ssp_s(view, policy.s)),
    (KAsync, lambda policy, view: k_async_s(view, policy.k)),
)


def seconds(policy: Policy[Any], view: StepView) -> float | None:
    """Seconds in which n * B samples count under a policy; None of a policy that nobody can tell it of.

    >>> from polyrhythm.policies.k_group import KGroup
    >>> view = StepView([[1.0], [3.0]], [], 8, exchange_s=0.0, message_s=0.0)
    >>> seconds(BSP(), view), seconds(KGroup(2), view)
    (3.0, None)
    """
    return next((predict(policy, view) for kind, predict in KINDS if isinstance(policy, kind)), None)
