"""Both structures against a plain dictionary of clocks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.policies._lib.clocks import ClockCounts, ClockGroups

moves = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=60)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(moves=moves)
def test_against_a_dictionary(moves: list[tuple[int, int]]) -> None:
    """A worker's first move adds it, an action of 0 removes it, every other advances it."""
    clocks: dict[int, int] = {}
    counts, groups = ClockCounts(), ClockGroups()
    for worker, action in moves:
        if worker not in clocks:
            clocks[worker] = action
            counts, groups = counts.add(action), groups.add(action, [worker])
        elif action == 0:
            clock = clocks.pop(worker)
            counts, groups = counts.remove(clock), groups.remove(clock, worker)
        else:
            clocks[worker] += 1
            counts, groups = counts.advance(clocks[worker]), groups.move(worker, clocks[worker])
        assert counts.minimum == groups.minimum == min(clocks.values(), default=0)
        assert groups.maximum == max(clocks.values(), default=0)
        assert sum(count for _, count in counts.counts) == len(clocks)
        ordered = sorted(clocks, key=lambda worker: (clocks[worker], worker))
        assert list(groups.up_to(99)) == ordered
        assert groups.up_to(3) + groups.above(3).up_to(99) == groups.up_to(99)
        assert not clocks or groups.first == ordered[0]


def test_equal_content_is_equal() -> None:
    assert ClockGroups().add(1, [5]).add(0, [7]) == ClockGroups().add(0, [7]).add(1, [5, 6]).remove(1, 6)
