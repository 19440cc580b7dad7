"""Who adds up what: every number once, by one member, after all others in a fixed order."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.runtime.collectives.shared.parts import OwnedPart, piece_of, whole, windows

LENGTHS, SIZES, ITEMS = st.integers(1, 10**7), st.integers(2, 40), st.sampled_from([1, 2, 4, 8])


def check(parts: list[OwnedPart], length: int, size: int) -> None:
    parts = sorted(part for part in parts if part[0] < part[1])
    assert parts[0][0] == 0
    assert parts[-1][1] == length
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert all(sorted(order) == list(range(size)) for *_, order in parts)


@given(length=LENGTHS, size=SIZES, item_bytes=ITEMS, most=st.integers(2**15, 2**20))
def test_everyone_adds_up_every_number_once(length: int, size: int, item_bytes: int, most: int) -> None:
    parts = whole(length, size, item_bytes, most)
    check(list(parts), length, size)
    assert all(stop - start <= most for start, stop, _ in parts)


@given(length=LENGTHS, size=SIZES, item_bytes=ITEMS, width=st.integers(2**18, 2**22))
def test_owners_of_windows_add_up_every_number_once(length: int, size: int, item_bytes: int, width: int) -> None:
    plans = [windows(length, size, rank, width, item_bytes, 2**18) for rank in range(size)]
    check([part for plan in plans for window in plan for part in window.parts], length, size)
    for window in (window for plan in plans for window in plan):
        assert window.start <= window.first <= window.last <= window.stop


@given(length=LENGTHS, size=SIZES, item_bytes=ITEMS)
def test_owners_of_pieces_add_up_every_number_once_and_begin_with_their_own(
    length: int, size: int, item_bytes: int
) -> None:
    pieces = [piece_of(length, size, rank, item_bytes) for rank in range(size)]
    check(pieces, length, size)
    assert [order[0] for *_, order in pieces] == list(range(size))


@given(length=LENGTHS, size=SIZES, item_bytes=ITEMS)
def test_all_ways_have_one_order(length: int, size: int, item_bytes: int) -> None:
    pieces = [piece_of(length, size, rank, item_bytes) for rank in range(size)]
    bounds = {order: (first, last) for first, last, order in pieces}
    for first, last, order in whole(length, size, item_bytes, 2**18):
        assert bounds[order][0] <= first < last <= bounds[order][1]
