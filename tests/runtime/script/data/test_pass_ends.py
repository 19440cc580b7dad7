"""Whether a script may go on with its loop when a pass over its own data is over."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyrhythm.runtime.script.data.pass_ends import LOOKS, PassEnds


@pytest.fixture
def ends() -> PassEnds:
    return PassEnds()


def step(ends: PassEnds) -> None:
    ends.reads(sys._getframe(1))
    ends.stepped(sys._getframe(1))


def test_before_the_loop_nothing_is_left(ends: PassEnds) -> None:
    assert not ends.left(sys._getframe())


def test_what_is_read_before_the_loop_says_nothing_of_it(ends: PassEnds) -> None:
    for _ in range(2):
        ends.reads(sys._getframe())
        for _ in range(LOOKS):
            ends.stepped(sys._getframe())
            ends.reads(sys._getframe())
        assert ends.left(sys._getframe())


def read(ends: PassEnds) -> bool:
    """Begin to read a loader."""
    return ends.repeats(sys._getframe(1))


def once(ends: PassEnds) -> Iterator[bool]:
    yield from [read(ends)]


def round_and_round(ends: PassEnds) -> Iterator[bool]:
    while True:
        yield from [read(ends)]


def shown(batches: Iterator[bool]) -> Iterator[bool]:
    for each in batches:  # as tqdm does it
        yield bool(each)


def test_a_generator_with_a_loop_around_reads_again(ends: PassEnds) -> None:
    assert next(round_and_round(ends))
    assert next(shown(round_and_round(ends)))


def test_a_generator_that_reads_once_does_not(ends: PassEnds) -> None:
    for _ in range(2):
        assert not next(once(ends))
        assert not next(shown(shown(once(ends))))


def test_a_loader_that_is_read_within_the_loop_is_read_again(ends: PassEnds) -> None:
    found = []
    for _ in range(2):
        found.append(read(ends))
        for _ in range(LOOKS):
            step(ends)
            found.append(read(ends))
    assert found == [False, *[True] * LOOKS] * 2


def test_another_thread_is_never_outside_of_the_loop(ends: PassEnds) -> None:
    """As one that writes checkpoints beside the training."""
    for _ in range(LOOKS):
        step(ends)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(lambda: ends.left(sys._getframe())).result()
    assert (found, ends.left(sys._getframe())) == (False, True)
