"""Shares of a global mini-batch: those with which the slowest worker is through first, and when a change pays."""

import heapq
import math
from collections.abc import Sequence

from polyrhythm.policies._lib.dealing.step_time import StepTime

PAYS = 0.03
"""By how much a step must become shorter for a change to pay."""

CAUTION = 4.0
"""Standard errors by which the slowest worker may be faster than it looks."""

APART = 2.5
"""Standard errors by which two workers must differ to be told apart."""

HALVINGS = 50


def split(times: Sequence[StepTime], samples: int, most: float, least: int = 1) -> tuple[int, ...]:
    """Whole shares of so many samples, from `least` to `most` each, whose slowest is through first.

    Of equally good ones the first workers have the larger shares. `most` gives way where it leaves samples over.

    >>> fast, slow = StepTime(sample_s=1.0), StepTime(sample_s=3.0)
    >>> split([fast, slow], 8, most=8), split([fast, slow], 8, most=5), split([slow, slow], 8, most=8)
    ((6, 2), (5, 3), (4, 4))
    """
    most = max(most, -(-samples // len(times)))
    shares = below(times, samples, most, least)
    left = samples - sum(shares)
    ends = [(time.expected_s(b + 1), p) for p, (time, b) in enumerate(zip(times, shares, strict=True)) if b < most]
    heapq.heapify(ends)
    for _ in range(left):
        _, worker = heapq.heappop(ends)
        shares[worker] += 1
        if shares[worker] < most:
            heapq.heappush(ends, (times[worker].expected_s(shares[worker] + 1), worker))
    return tuple(shares)


def below(times: Sequence[StepTime], samples: int, most: float, least: int = 1) -> list[int]:
    """The largest shares that everyone is through with by some time, and that are no more than so many samples."""
    low, high = 0.0, max(time.expected_s(samples) for time in times)
    shares = [least] * len(times)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = [through(time, middle, most, least) for time in times]
        if sum(found) <= samples:
            low, shares = middle, found
        else:
            high = middle
    return shares


def through(time: StepTime, end_s: float, most: float, least: int = 1) -> int:
    """Samples that a worker is through with by then, at least so many."""
    samples = (end_s - time.transfer_s - time.fixed_s) / time.sample_s
    return max(least, int(min(samples, most)))


def least_s(times: Sequence[StepTime], samples: int) -> float:
    """A time before which no shares of so many samples are done, whole or not."""
    speeds = [1 / time.sample_s for time in times]
    ahead = sum((time.transfer_s + time.fixed_s) / time.sample_s for time in times)
    return (samples + ahead) / sum(speeds)


def slowest_s(times: Sequence[StepTime], shares: Sequence[int]) -> float:
    return max(time.expected_s(share) for time, share in zip(times, shares, strict=True))


def usual_spread(times: Sequence[StepTime]) -> float:
    return math.sqrt(sum(time.spread**2 for time in times) / len(times))


def surely_s(times: Sequence[StepTime], shares: Sequence[int]) -> float:
    """When the slowest is through at the earliest, as far as one can know.

    Of few steps nobody can tell how unsteady a worker is, so it is taken to be at least as the others are.
    """
    usual = usual_spread(times)
    return max(
        time.expected_s(share) * (1 - CAUTION * time.doubt(usual)) for time, share in zip(times, shares, strict=True)
    )


def grouped(times: Sequence[StepTime], batch_size: int) -> list[StepTime]:
    """The same times, where those of workers that cannot be told apart are their mean.

    Otherwise what is chance in a few steps would be dealt out, and stay.

    >>> one, other, third = (StepTime(sample_s=seconds) for seconds in (1.0, 1.2, 4.0))
    >>> [round(time.sample_s, 1) for time in grouped([third, other, one], batch_size=8)]
    [4.0, 1.1, 1.1]
    """
    usual, result = usual_spread(times), list(times)
    group: list[int] = []
    for worker in sorted(range(len(times)), key=lambda worker: times[worker].expected_s(batch_size)):
        if group and told_apart(times[group[0]], times[worker], batch_size, usual):
            group = []
        group.append(worker)
        mean = mean_time([times[member] for member in group])
        for member in group:
            result[member] = mean
    return result


def told_apart(fast: StepTime, slow: StepTime, batch_size: int, usual: float) -> bool:
    apart_s = slow.expected_s(batch_size) - fast.expected_s(batch_size)
    doubts_s = [time.doubt(usual) * time.expected_s(batch_size) for time in (fast, slow)]
    return apart_s > APART * math.hypot(*doubts_s)


def mean_time(times: Sequence[StepTime]) -> StepTime:
    return StepTime(
        transfer_s=sum(time.transfer_s for time in times) / len(times),
        fixed_s=sum(time.fixed_s for time in times) / len(times),
        sample_s=sum(time.sample_s for time in times) / len(times),
    )


def better_shares(
    times: Sequence[StepTime],
    now: tuple[int, ...],
    batch_size: int,
    most: float,
    exchange_s: float,
    least: int = 1,
) -> tuple[int, ...]:
    """Shares to go on with: those of now, unless others make a step with its exchange shorter by `PAYS`.

    Where equal shares are nearly as good as the best they are preferred.
    """
    samples, today_s = batch_size * len(times), surely_s(times, now) + exchange_s
    if today_s < (least_s(times, samples) + exchange_s) * (1 + PAYS):
        return now
    times = grouped(times, batch_size)
    best = split(times, samples, most, min(least, batch_size))
    equal = (batch_size,) * len(times)
    if slowest_s(times, equal) + exchange_s <= (slowest_s(times, best) + exchange_s) * (1 + PAYS / 2):
        best = equal
    return best if today_s >= (slowest_s(times, best) + exchange_s) * (1 + PAYS) else now
