from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.workload import Lease, Workload
from polyrhythm.errors import PolyrhythmError

sizes = st.integers(1, 50)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(dataset=sizes, total=sizes, actions=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=80))
def test_every_position_exactly_once(dataset: int, total: int, actions: list[tuple[int, bool]]) -> None:
    """Under any sizes of mini-batches, and whatever is given back in between."""
    work = Workload(dataset, total)
    done: list[Lease] = []
    for samples, back in actions:
        lease = work.lease(samples)
        if lease is None:
            break
        assert 1 <= lease.samples <= samples
        if back:
            work.give_back(lease)
        else:
            done.append(lease)
    done += work.drain()
    assert work.lease(1) is None
    positions = Counter((lease.epoch, position) for lease in done for position in range(lease.start, lease.stop))
    assert positions == Counter(divmod(sample, dataset) for sample in range(total))


def test_what_is_given_back_comes_first() -> None:
    work = Workload(dataset_samples=10, total_samples=10)
    first, second = work.lease(3), work.lease(3)
    assert first
    assert second
    work.give_back(second)
    work.give_back(first)
    assert [work.lease(2), work.lease(2), work.lease(3)] == [Lease(0, 0, 2), Lease(0, 2, 3), Lease(0, 3, 6)]


def test_extended_by_an_epoch() -> None:
    work = Workload(dataset_samples=4, total_samples=4)
    assert work.drain() == (Lease(0, 0, 4),)
    work.extend(4)
    assert work.drain() == (Lease(1, 0, 4),)


@pytest.mark.parametrize("name", ["dataset_samples", "total_samples"])
def test_no_samples(name: str) -> None:
    with pytest.raises(PolyrhythmError, match=f"{name} must be at least 1 but got 0"):
        replace(Workload(1, 1), **{name: 0})  # type: ignore[arg-type]
