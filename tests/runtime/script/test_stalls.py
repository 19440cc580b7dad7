"""Ranks that wait for each other for ever, and others that do not."""

import pytest

from polyrhythm.runtime.script.stalls import COLLECTIVE, EPOCH, LOOKS, Wait, lasts, stall

BEFORE = Wait(EPOCH, 3, "train.py:7", LOOKS)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (BEFORE._replace(looks=LOOKS + 1), True),
        (BEFORE, False),
        (BEFORE._replace(looks=LOOKS + 1, begun=4), False),
        (BEFORE._replace(looks=LOOKS + 1, what=COLLECTIVE), False),
    ],
)
def test_who_has_not_been_seen_to_go_on_waiting_may_have_ended(now: Wait, found: bool) -> None:
    assert lasts(now, BEFORE) == found


def test_only_ranks_that_wait_for_each_other_say_so() -> None:
    waits = {
        0: Wait(COLLECTIVE, 4, "a.py:1", LOOKS),
        1: Wait(EPOCH, 4, "a.py:2", LOOKS),
        2: Wait(EPOCH, 3, "a.py:3", LOOKS),
    }
    assert [bool(stall(waits, rank)) for rank in range(3)] == [True, False, True]
    assert stall(waits, 0).startswith("a.py:3: rank 2 waits until all ranks begin or end an epoch, and rank 0 (a.py:1)")


def test_ranks_that_all_wait_before_an_epoch_or_in_a_collective_wait_for_others() -> None:
    for what in (EPOCH, COLLECTIVE):
        assert not stall({rank: Wait(what, rank, "a.py:1", LOOKS) for rank in range(3)}, 0)
