"""How a synchronous phase cuts what is left of an epoch: the same plan on every rank, without a message."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from polyrhythm.core.workload import SampleRange, Workload, divide, even_share, even_steps
from polyrhythm.errors import UsageError


@dataclass(frozen=True)
class EpochPlan:
    """Equal steps over ranges of positions, for `members` workers with mini-batches of `batch_size`.

    Step s of member i takes the positions ``[(s * members + i) * batch_size, ... + batch_size)`` of the concatenated
    ranges. What is left over at the end is one step of smaller, equal batches; if it is less than one sample for each
    member, that many batches of the last step are larger by one. So every position is taken once, and in every step
    each member has something to contribute.

    Example:
        >>> plan = EpochPlan((SampleRange(0, 0, 10),), members=2, batch_size=3)
        >>> plan.steps, plan.batch(0, 1), plan.batch(1, 0), plan.batch(1, 1)  # doctest: +NORMALIZE_WHITESPACE
        (2, (SampleRange(epoch=0, start=3, stop=6),), (SampleRange(epoch=0, start=6, stop=8),),
         (SampleRange(epoch=0, start=8, stop=10),))
    """

    ranges: tuple[SampleRange, ...]
    members: int
    batch_size: int
    least: int = 1
    """Samples that each member has where shares are unequal, as far as there are enough."""
    least_even: int = 1
    """Samples that each has where they are equal, unless a whole mini-batch has fewer."""
    starts: tuple[int, ...] = field(init=False, repr=False)
    """Virtual positions at which the ranges begin, and the end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", (0, *accumulate(sample_range.samples for sample_range in self.ranges)))
        each = min(self.least_even, self.batch_size)
        if self.samples < self.members * each:
            raise UsageError(
                f"{self.samples} samples cannot feed {self.members} workers in synchronous mode"
                f"{f', with {each} for each because of batch norm' if each > 1 else ''}; "
                f"use fewer workers{' or more data' if self.samples < each else ', more data, or policy asp'}"
            )

    @cached_property
    def samples(self) -> int:
        """Samples of all ranges."""
        return self.starts[-1]

    @cached_property
    def steps(self) -> int:
        """Steps until every position is taken."""
        return even_steps(self.samples, self.members, self.batch_size, self.least_even)

    def step_that_serves(self, samples: float) -> int | None:
        """The step after which at least so many samples are taken; None if too few would be left for a phase."""
        width = self.members * self.batch_size
        if not 0 < samples <= self.samples - 2 * width:
            return None
        return math.ceil(samples / width) - 1

    def batch(self, step: int, member: int, shares: Sequence[int] = ()) -> tuple[SampleRange, ...]:
        """Positions of one member in one step, in order; `shares` are as in `size`."""
        size, first = self.batch_size, (step * self.members + member) * self.batch_size
        if shares or step >= self.steps - 1:
            size = self.size(step, member, shares)
            first = step * self.members * self.batch_size
            first += sum(self.size(step, other, shares) for other in range(member))
        return self._cut(first, first + size)

    def size(self, step: int, member: int, shares: Sequence[int] = ()) -> int:
        """Samples of one member in one step.

        Args:
            step, member: numbers of the two.
            shares: samples of each member in a whole step, if they are unequal; the last step is divided like them.
        """
        if not shares:
            return even_share(self.samples, self.members, self.batch_size, step, member, self.least_even)
        if step < self.steps - 1:
            return shares[member]
        return divide(self.samples - step * self.members * self.batch_size, shares, self.least)[member]

    def rest(self, steps: int) -> tuple[SampleRange, ...]:
        """What is left after so many steps."""
        return self._cut(steps * self.members * self.batch_size, self.samples) if steps < self.steps else ()

    def _cut(self, start: int, stop: int) -> tuple[SampleRange, ...]:
        if len(self.ranges) == 1:
            epoch, offset, _ = self.ranges[0]
            return (SampleRange(epoch, offset + start, offset + stop),) if start < stop else ()
        return tuple(self._parts(start, stop))

    def _parts(self, start: int, stop: int) -> Iterator[SampleRange]:
        for number in range(bisect_right(self.starts, start) - 1, len(self.ranges)):
            offset, sample_range = self.starts[number], self.ranges[number]
            low, high = max(start - offset, 0), min(stop - offset, sample_range.samples)
            if low >= high:
                return
            yield SampleRange(sample_range.epoch, sample_range.start + low, sample_range.start + high)


@dataclass
class ShareSchedule:
    """Which shares are in force in which step of a plan; none are equal ones.

    Example:
        >>> plan = EpochPlan((SampleRange(0, 0, 20),), members=2, batch_size=4)
        >>> schedule = ShareSchedule(plan)
        >>> schedule.change(1, (7, 1))
        >>> [schedule.batch(step, 1)[0] for step in range(plan.steps)]  # doctest: +NORMALIZE_WHITESPACE
        [SampleRange(epoch=0, start=4, stop=8), SampleRange(epoch=0, start=15, stop=16),
         SampleRange(epoch=0, start=19, stop=20)]
        >>> [schedule.weight(step, 1) for step in range(plan.steps)]
        [None, 0.25, 0.5]
    """

    plan: EpochPlan
    since: list[int] = field(default_factory=lambda: [0])
    """Steps from which on each entry of `shares` holds, ascending."""
    shares: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def change(self, step: int, shares: tuple[int, ...]) -> None:
        """From this step on others are in force."""
        assert step >= self.since[-1], f"shares from step {step} on come after those from step {self.since[-1]} on"
        self.since.append(step)
        self.shares.append(shares)

    def at(self, step: int) -> tuple[int, ...]:
        """The shares of one step."""
        return self.shares[bisect_right(self.since, step) - 1]

    def batch(self, step: int, member: int) -> tuple[SampleRange, ...]:
        """Positions of one member in one step, in order."""
        return self.plan.batch(step, member, self.at(step))

    def draw(self, step: int, member: int) -> tuple[tuple[SampleRange, ...], int, float | None]:
        """What `batch`, `largest` and `weight` say of one step."""
        if self.shares[-1] or len(self.shares) > 1 or step >= self.plan.steps - 1:
            return self.batch(step, member), self.largest(step), self.weight(step, member)
        return self.plan.batch(step, member), self.plan.batch_size, None

    def largest(self, step: int) -> int:
        """Samples of the member that would have most of them in one step if shares were equal; where they are not, that
        would have fewest, since each has as many at least.
        """
        return self.plan.size(step, self.plan.members - 1 if self.at(step) else 0)

    def weight(self, step: int, member: int) -> float | None:
        """What a member's mean gradient counts for, where the mean over the members is that over all samples.

        None under equal shares: everyone counts as much, also in a last step that does not divide evenly.
        """
        shares = self.at(step)
        if not shares:
            return None
        sizes = [self.plan.size(step, other, shares) for other in range(self.plan.members)]
        return self.plan.members * sizes[member] / sum(sizes)


def plan_of(
    workload: Workload, members: Sequence[int], batch_size: int, least: int = 1, least_even: int = 1
) -> EpochPlan:
    """What is left of a workload for these workers in synchronous mode: each takes what the workload has for it.

    Raises:
        UsageError: if there are too few for a step of each.
    """
    workload.attend(members)
    if workload.shared:
        left = joined(workload.gather(workload.left, members[0]))
        return EpochPlan(tuple(left), len(members), batch_size, least, least_even)
    even = EpochPlan((SampleRange(0, 0, workload.left),), len(members), batch_size, least_even=least_even)
    ranges: list[SampleRange] = []
    for step in range(even.steps):
        for index, member in enumerate(members):
            ranges += workload.gather(sum(sample_range.samples for sample_range in even.batch(step, index)), member)
    return EpochPlan(tuple(joined(ranges)), len(members), batch_size, least_even=least_even)


def joined(ranges: Sequence[SampleRange]) -> Iterator[SampleRange]:
    """The same positions in the same order, with neighbours as one."""
    last = ranges[0]
    for sample_range in ranges[1:]:
        if (sample_range.epoch, sample_range.start) == (last.epoch, last.stop):
            last = SampleRange(last.epoch, last.start, sample_range.stop)
        else:
            yield last
            last = sample_range
    yield last
