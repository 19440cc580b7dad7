from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.shards import ShardedWorkload, Shards
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolyrhythmError

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple)


@given(SIZES, st.booleans(), st.integers(0, 9))
def test_the_parts_of_an_epoch_are_the_whole(sizes: tuple[int, ...], rotate: bool, epoch: int) -> None:
    shards = Shards(sizes, rotate)
    parts = [shards.part(worker, epoch) for worker in range(len(sizes))]
    assert sorted(p for part in parts for p in range(part.start, part.stop)) == list(range(shards.samples))
    assert [shards.owner(part) for part in parts] == list(range(len(sizes)))


@given(SIZES)
def test_shards_that_rotate_are_all_read_by_every_worker(sizes: tuple[int, ...]) -> None:
    shards = Shards(sizes, rotate=True)
    for worker in range(len(sizes)):
        assert {shards.shard(shards.part(worker, epoch)) for epoch in range(len(sizes))} == set(range(len(sizes)))


def test_an_empty_shard_is_refused() -> None:
    with pytest.raises(PolyrhythmError, match=r"every shard needs a sample.*\[3, 0\]"):
        Shards((3, 0))


class Readers:
    """Workers that read, and may lose what they hold."""

    def __init__(self, work: ShardedWorkload) -> None:
        self.work = work
        self.held: dict[int, SampleRange] = {}
        self.done: Counter[tuple[int, int]] = Counter()

    def draw(self, worker: int) -> bool:
        """Finish the last mini-batch and take the next."""
        if worker in self.held:
            sample_range = self.held.pop(worker)
            self.done.update(
                (sample_range.epoch, position) for position in range(sample_range.start, sample_range.stop)
            )
        lease_or_none = self.work.hand_out(3, worker)
        if lease_or_none is not None:
            self.held[worker] = lease_or_none
        return lease_or_none is not None

    def finish(self, workers: list[int]) -> None:
        """All that is left."""
        while True:
            drawn = [self.draw(worker) for worker in workers]
            if not any(drawn):
                return

    def lose(self, worker: int) -> None:
        if worker in self.held:
            self.work.give_back(self.held.pop(worker))


ACTIONS = st.tuples(st.integers(0, 4), st.sampled_from(["draw"] * 4 + ["abandon", "leave", "join"]))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(SIZES, st.booleans(), st.integers(1, 60), st.lists(ACTIONS, max_size=60))
def test_no_position_is_lost_or_read_twice_whoever_comes_and_goes(
    sizes: tuple[int, ...], rotate: bool, total: int, script: list[tuple[int, str]]
) -> None:
    work = ShardedWorkload(Shards(sizes, rotate), total)
    readers, live = Readers(work), set(range(len(sizes)))
    work.join(live)
    for number, action in script:
        worker = number % len(sizes)
        if action == "join":
            live.add(worker)
            work.join([worker])
        elif worker in live and action == "draw":
            readers.draw(worker)
        elif worker in live:
            readers.lose(worker)
            if action == "leave":
                live.discard(worker)
                work.leave(worker)
    work.join([0])
    readers.finish(sorted(live | {0}))
    assert work.left == 0
    assert set(readers.done.values()) <= {1}
    assert readers.done.total() == total
    check_passes(Shards(sizes, rotate), readers.done)


def check_passes(shards: Shards, done: Counter[tuple[int, int]]) -> None:
    """Of each worker's passes, all but the last are complete, and the last is begun from its start."""
    for worker in range(len(shards.sizes)):
        passes = [
            part
            for epoch in range(70)
            if any((epoch, p) in done for p in positions(shards, worker, epoch))
            for part in [[(epoch, p) in done for p in positions(shards, worker, epoch)]]
        ]
        for read in passes[:-1]:
            assert all(read)
        if passes:
            assert passes[-1] == sorted(passes[-1], reverse=True)


def positions(shards: Shards, worker: int, epoch: int) -> range:
    part = shards.part(worker, epoch)
    return range(part.start, part.stop)


def test_a_worker_goes_round_its_own_shard() -> None:
    work = ShardedWorkload(Shards((2, 4)), total_samples=10)
    work.join([0, 1])
    assert [work.hand_out(2, 0) for _ in range(3)] == [SampleRange(0, 0, 2), SampleRange(1, 0, 2), SampleRange(2, 0, 2)]
    assert work.hand_out(9, 1) == SampleRange(0, 2, 6)
    assert work.hand_out(1, 0) is None


def test_what_is_given_back_is_its_owners() -> None:
    work = ShardedWorkload(Shards((4, 4)), total_samples=16)
    work.join([0, 1])
    sample_range = work.hand_out(4, 0)
    assert sample_range is not None
    work.give_back(sample_range)
    assert work.hand_out(4, 1) == SampleRange(0, 4, 8)
    assert work.hand_out(3, 0) == SampleRange(0, 0, 3)


def test_who_is_through_helps_with_the_pass_of_an_absent_worker_before_its_own_next() -> None:
    work = ShardedWorkload(Shards((2, 2, 2)), total_samples=100)
    work.join([0, 1])
    drawn = [work.hand_out(2, 0) for _ in range(4)]
    assert drawn == [SampleRange(0, 0, 2), SampleRange(0, 4, 6), SampleRange(1, 0, 2), SampleRange(1, 4, 6)]
    work.join([2])
    assert work.hand_out(2, 2) == SampleRange(2, 4, 6)
