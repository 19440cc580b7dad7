from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyrhythm.core.epoch_plan import EpochPlan, ShareSchedule
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolyrhythmError

gaps = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=4)


def ranges(pieces: list[tuple[int, int]]) -> tuple[SampleRange, ...]:
    """Ranges of given lengths after given gaps."""
    sample_ranges, start = [], 0
    for gap, length in pieces:
        sample_ranges.append(SampleRange(0, start + gap, start + gap + length))
        start += gap + length
    return tuple(sample_ranges)


def positions(sample_ranges: tuple[SampleRange, ...]) -> list[int]:
    return [position for sample_range in sample_ranges for position in range(sample_range.start, sample_range.stop)]


@given(pieces=gaps, members=st.integers(1, 5), batch_size=st.integers(1, 7), cut=st.integers(0, 60))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_every_position_once_and_something_for_everyone(
    pieces: list[tuple[int, int]], members: int, batch_size: int, cut: int
) -> None:
    whole = ranges(pieces)
    if len(positions(whole)) < members:
        with pytest.raises(PolyrhythmError, match=r"samples cannot feed \d workers in synchronous mode"):
            EpochPlan(whole, members, batch_size)
        return
    plan = EpochPlan(whole, members, batch_size)
    batches = [[positions(plan.batch(step, member)) for member in range(members)] for step in range(plan.steps)]
    assert Counter(p for step in batches for batch in step for p in batch) == Counter(positions(whole))
    sizes = [[len(batch) for batch in step] for step in batches]
    assert sizes == [[plan.size(step, member) for member in range(members)] for step in range(plan.steps)]
    assert all(size == batch_size for step in sizes[:-1] for size in step)
    assert 1 <= min(sizes[-1]) <= max(sizes[-1]) <= min(sizes[-1]) + 1
    equal = ShareSchedule(plan)
    for step in range(plan.steps):
        drawn = [equal.draw(step, member) for member in range(members)]
        assert drawn == [(plan.batch(step, member), max(sizes[step]), None) for member in range(members)]
    check_rest(plan, batches, cut)


@given(pieces=gaps, shares=st.lists(st.integers(1, 9), min_size=1, max_size=5), cut=st.integers(0, 60))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_unequal_shares_take_every_position_once(pieces: list[tuple[int, int]], shares: list[int], cut: int) -> None:
    """They come into force in the middle, and add up to mini-batches of one size."""
    whole, members = ranges(pieces), len(shares)
    shares[0] += -sum(shares) % members
    assume(len(positions(whole)) >= members)
    plan = EpochPlan(whole, members, sum(shares) // members)
    schedule = ShareSchedule(plan)
    schedule.change(cut // 4, tuple(shares))
    batches = [[positions(schedule.batch(step, member)) for member in range(members)] for step in range(plan.steps)]
    assert Counter(p for step in batches for batch in step for p in batch) == Counter(positions(whole))
    sizes = [[len(batch) for batch in step] for step in batches]
    assert all(min(step) >= 1 for step in sizes)
    assert all(step == shares for step in sizes[cut // 4 : -1])
    for step in range(cut // 4, plan.steps):
        weights = [schedule.weight(step, member) for member in range(members)]
        for member in range(members):
            drawn = schedule.batch(step, member), schedule.largest(step), weights[member]
            assert schedule.draw(step, member) == drawn
        assert weights == pytest.approx([members * size / sum(sizes[step]) for size in sizes[step]])
    check_rest(plan, batches, cut)


@given(samples=st.integers(8, 120), shares=st.lists(st.integers(4, 12), min_size=2, max_size=4))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_every_share_can_be_cut_as_often_as_the_smallest_even_one(samples: int, shares: list[int]) -> None:
    """Into four mini-batches where a script adds up as many, also in the last step."""
    members = len(shares)
    shares[0] += -sum(shares) % members
    plan = EpochPlan((SampleRange(0, 0, samples),), members, sum(shares) // members, least=4)
    schedule = ShareSchedule(plan)
    schedule.change(0, tuple(shares))
    for step in range(plan.steps):
        count = min(4, schedule.largest(step))
        assert all(len(positions(schedule.batch(step, member))) >= count for member in range(members))


@given(samples=st.integers(1, 120), members=st.integers(1, 5), batch_size=st.integers(1, 7), least=st.integers(1, 4))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_equal_mini_batches_are_not_too_small_for_a_model(
    samples: int, members: int, batch_size: int, least: int
) -> None:
    """Unless all are; a rest that is too small for a step makes the mini-batches of the last one larger."""
    whole, each = (SampleRange(0, 0, samples),), min(least, batch_size)
    if samples < members * each:
        with pytest.raises(PolyrhythmError, match="with .* for each because of batch norm" if each > 1 else "cannot"):
            EpochPlan(whole, members, batch_size, least_even=least)
        return
    plan = EpochPlan(whole, members, batch_size, least_even=least)
    batches = [[positions(plan.batch(step, member)) for member in range(members)] for step in range(plan.steps)]
    assert [p for step in batches for batch in step for p in batch] == list(range(samples))
    sizes = [[len(batch) for batch in step] for step in batches]
    assert sizes == [[plan.size(step, member) for member in range(members)] for step in range(plan.steps)]
    assert each <= min(min(step) for step in sizes)
    assert max(max(step) for step in sizes) <= batch_size + each
    check_rest(plan, batches, cut=plan.steps // 2)


def check_rest(plan: EpochPlan, batches: list[list[list[int]]], cut: int) -> None:
    done = min(cut, plan.steps)
    rest = [p for step in batches[done:] for batch in step for p in batch]
    assert sorted(positions(plan.rest(done))) == sorted(rest)
