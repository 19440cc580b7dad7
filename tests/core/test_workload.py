from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.shards import ShardedWorkload, Shards
from polyrhythm.core.workload import SampleRange, Workload, divide
from polyrhythm.errors import PolyrhythmError

sizes = st.integers(1, 50)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(dataset=sizes, total=sizes, actions=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=80))
def test_every_position_exactly_once(dataset: int, total: int, actions: list[tuple[int, bool]]) -> None:
    """Under any sizes of mini-batches, and whatever is given back in between."""
    work = Workload(dataset, total)
    done: list[SampleRange] = []
    for samples, back in actions:
        sample_range = work.hand_out(samples)
        if sample_range is None:
            break
        assert 1 <= sample_range.samples <= samples
        if back:
            work.give_back(sample_range)
        else:
            done.append(sample_range)
    done += work.drain()
    assert work.hand_out(1) is None
    positions = Counter(
        (sample_range.epoch, position)
        for sample_range in done
        for position in range(sample_range.start, sample_range.stop)
    )
    assert positions == Counter(divmod(sample, dataset) for sample in range(total))


def test_what_is_given_back_comes_first() -> None:
    work = Workload(dataset_samples=10, total_samples=10)
    first, second = work.hand_out(3), work.hand_out(3)
    assert first
    assert second
    work.give_back(second)
    work.give_back(first)
    assert [work.hand_out(2), work.hand_out(2), work.hand_out(3)] == [
        SampleRange(0, 0, 2),
        SampleRange(0, 2, 3),
        SampleRange(0, 3, 6),
    ]


def test_extended_by_an_epoch() -> None:
    work = Workload(dataset_samples=4, total_samples=4)
    assert work.drain() == (SampleRange(0, 0, 4),)
    work.extend(4)
    assert work.drain() == (SampleRange(1, 0, 4),)


@pytest.mark.parametrize("name", ["dataset_samples", "total_samples"])
def test_no_samples(name: str) -> None:
    with pytest.raises(PolyrhythmError, match=f"{name} must be at least 1 but got 0"):
        replace(Workload(1, 1), **{name: 0})  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(shares=st.lists(st.integers(1, 500), min_size=1, max_size=12), more=st.integers(0, 3000))
def test_parts_are_whole_and_in_proportion(shares: list[int], more: int) -> None:
    samples = len(shares) + more
    parts = divide(samples, shares)
    assert sum(parts) == samples
    assert min(parts) >= 1
    assert divide(sum(shares), shares) == tuple(shares)
    assert min(divide(samples, shares, least=7)) >= min(7, samples // len(shares))
    least = min(1 if min(shares) == 1 else 2, samples // len(shares))
    if min(samples * share // sum(shares) for share in shares) >= least:
        assert all(abs(part - samples * share / sum(shares)) < 1 for part, share in zip(parts, shares, strict=True))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    dataset=st.integers(12, 90),
    batch_size=st.integers(2, 4),
    draws=st.lists(st.integers(0, 99), min_size=9, max_size=9),
)
def test_a_round_in_shares_has_the_samples_of_an_equal_one(dataset: int, batch_size: int, draws: list[int]) -> None:
    """Also where an epoch ends in it: otherwise two runs of equal gradients part there."""
    equal, dealt, workers = Workload(dataset, 3 * dataset), Workload(dataset, 3 * dataset), (0, 1, 2)
    for draw in draws:
        first = 1 + draw % (3 * batch_size - 2)
        second = 1 + draw % (3 * batch_size - first - 1)
        shares = (first, second, 3 * batch_size - first - second)
        dealt.share_out(workers, shares)
        for worker in workers:
            equal.hand_out(batch_size, worker)
            assert dealt.hand_out(shares[worker], worker) is not None or not dealt.left
        assert equal.handed_out == dealt.handed_out


@pytest.mark.parametrize("sharded", [False, True])
@given(samples=st.integers(2, 60), batch_size=st.integers(2, 7), back=st.integers(0, 3))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_no_rest_is_left_that_is_too_small_to_be_a_mini_batch(
    sharded: bool, samples: int, batch_size: int, back: int
) -> None:
    """What is given back is taken as it was, and every position once."""
    work = ShardedWorkload(Shards((samples,)), samples) if sharded else Workload(samples, samples)
    work.least, taken = 2, list[SampleRange]()
    work.attend([0])
    while (sample_range := work.hand_out(work.whole(batch_size))) is not None:
        assert 2 <= sample_range.samples <= batch_size + 1
        if len(taken) == back:
            work.give_back(sample_range)
            back = -1
        else:
            taken.append(sample_range)
    assert sorted(position for each in taken for position in range(each.start, each.stop)) == list(range(samples))
