"""Who adds up which numbers of a vector, and in which order: pieces and orders are those of gloo's ring.

A vector is gone through in windows. Each member owns a part of each window: it adds up what the others show of it, and
shows them the sum. So the work that a member has does not grow with their number.
"""

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

SEGMENT: Final = 2**20
"""Bytes that gloo adds up at most at a time."""

ALIGNED: Final = 32
"""Numbers; parts of two owners are not in one cache line."""

OwnedPart: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Where a part of a vector begins and ends, and the ranks in the order in which it is added up."""


class Window(NamedTuple):
    """Numbers of a vector that are shown at a time: from `start` to `stop`, of which those from `first` to `last` are
    added up by this member, in `parts`.
    """

    start: int
    stop: int
    first: int
    last: int
    parts: tuple[OwnedPart, ...]


@lru_cache(maxsize=64)
def windows(length: int, size: int, rank: int, width: int, item_bytes: int, most: int) -> tuple[Window, ...]:
    """Windows of a vector of `length` numbers as the member of that rank sees them.

    Example:
        >>> [window.first for window in windows(1000, 2, 1, 512, 4, 512)]
        [256, 768]
    """
    found = []
    for start in range(0, length, width):
        stop = min(start + width, length)
        share = -(-(stop - start) // size)
        share += -share % ALIGNED
        first, last = (min(start + share * owner, stop) for owner in (rank, rank + 1))
        found.append(Window(start, stop, first, last, cut(first, last, length, size, item_bytes, most)))
    return tuple(found)


@lru_cache(maxsize=64)
def whole(length: int, size: int, item_bytes: int, most: int) -> tuple[OwnedPart, ...]:
    """The parts of a vector that each member adds up by itself."""
    return cut(0, length, length, size, item_bytes, most)


def piece_of(length: int, size: int, rank: int, item_bytes: int) -> OwnedPart:
    """The piece of a vector whose order begins with that member.

    Example:
        >>> [piece_of(5, 3, rank, 4) for rank in range(3)]
        [(2, 4, (0, 2, 1)), (4, 5, (1, 0, 2)), (0, 2, (2, 1, 0))]
    """
    piece, k = piece_length(length, size, item_bytes), (rank + 1) % size
    return min(k * piece, length), min((k + 1) * piece, length), order_of(k, size)


def cut(first: int, last: int, length: int, size: int, item_bytes: int, most: int) -> tuple[OwnedPart, ...]:
    """The numbers from `first` to `last` of a vector in parts, each with the order in which gloo's ring adds it up.

    Example:
        >>> cut(0, 5, 5, 3, 4, 512)
        ((0, 2, (2, 1, 0)), (2, 4, (0, 2, 1)), (4, 5, (1, 0, 2)))
    """
    piece, parts = piece_length(length, size, item_bytes), []
    while first < last:
        k = first // piece
        end = min((k + 1) * piece, first + most, last)
        parts.append((first, end, order_of(k, size)))
        first = end
    return tuple(parts)


def piece_length(length: int, size: int, item_bytes: int) -> int:
    """gloo cuts a vector in as many pieces as there are members, each of two or more equal segments."""
    segments = max(-(-length * item_bytes // SEGMENT), 2 * size)
    segments += -segments % size
    return segments // size * -(-length // segments)


def order_of(k: int, size: int) -> tuple[int, ...]:
    """Piece k goes round from member k - 1 downwards, and each adds what comes to its own."""
    return tuple((k - 1 - i) % size for i in range(size))
