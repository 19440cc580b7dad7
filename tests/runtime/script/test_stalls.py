"""Ranks that wait for each other for ever, and others that do not."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]

from polyrhythm.runtime.collectives.nonraising_work import QuietWork
from polyrhythm.runtime.script.script_group import ANYONE
from polyrhythm.runtime.script.stalls import COLLECTIVE, EPOCH, LOOKS, MESSAGE, Board, Stalls, Wait, lasts, stall

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


class Pending(QuietWork):
    """What is under way until it is over."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)])
        self.over = False

    def is_completed(self) -> bool:
        return self.over


def test_messages_between_two_ranks_are_no_collectives_of_all() -> None:
    """A third rank does not come to them: it may wait before the next epoch meanwhile."""
    stalls, work = Stalls(2), Pending()
    stalls.messaged(work, 1)
    assert stalls.waits() is None, "a message that nobody waits for"
    work.before_wait()
    waits = stalls.waits()
    assert waits is not None
    assert (waits.what, waits.begun, waits.other) == (MESSAGE, 1, 1)
    work.over = True
    assert stalls.waits() is None


def test_who_waits_for_a_message_waits_for_the_rank_that_has_it() -> None:
    waits = {
        0: Wait(EPOCH, 3, "a.py:1", LOOKS, messages=((2, 1),)),
        1: Wait(MESSAGE, 1, "a.py:2", LOOKS, other=2),
        2: Wait(MESSAGE, 2, "a.py:3", LOOKS, other=0),
    }
    said = "a.py:1: rank 0 waits until all ranks begin or end an epoch, and rank 2 (a.py:3) until rank 0 sends to it"
    assert [stall(waits, rank).startswith(said) for rank in range(3)] == [True, False, True]
    del waits[2]
    assert not stall(waits, 0), "rank 2 may go on"


@pytest.mark.parametrize("messages", [((2, 2),), ((2, 1), (ANYONE, 1))], ids=["under way", "from anyone"])
def test_a_message_that_may_be_on_its_way_is_waited_for(messages: tuple[tuple[int, int], ...]) -> None:
    waits = {
        0: Wait(EPOCH, 3, "a.py:1", LOOKS, messages=messages),
        2: Wait(MESSAGE, 2, "a.py:3", LOOKS, other=0),
    }
    assert not stall(waits, 0)


def test_a_collective_of_another_thread_is_not_the_scripts_own_wait() -> None:
    """As of a checkpoint that is written meanwhile."""
    stalls, work = Stalls(0), Pending()
    thread = threading.Thread(target=stalls.launched, args=(work,))
    thread.start()
    thread.join()
    assert stalls.waits() is None
    stalls.launched(work)
    waits = stalls.waits()
    assert waits is not None
    assert (waits.what, waits.begun) == (COLLECTIVE, 1)


class CountingStore:
    """Counts what is asked of a store."""

    def __init__(self) -> None:
        self.store, self.requests = HashStore(), 0

    def __getattr__(self, name: str) -> Any:
        self.requests += name != "has_extended_api"
        return getattr(self.store, name)


def test_waiting_costs_each_rank_a_few_requests_a_look_however_many_there_are() -> None:
    ranks, looks = 64, 60
    store = CountingStore()
    boards = [Board(store, rank, ranks) for rank in range(ranks)]  # type: ignore[arg-type]
    for number in range(1, looks):
        assert not any(board.tell(Wait(COLLECTIVE, 1, "a.py:1", number)) for board in boards)
    assert store.requests < 3 * ranks * looks


@pytest.mark.parametrize("later", [0, 100])
@pytest.mark.parametrize("kind", [HashStore, FileStore])
def test_who_comes_last_finds_the_stall_and_all_hear_of_it(kind: Any, later: int, tmp_path: Path) -> None:
    store = kind(str(tmp_path / "store"), 3) if kind is FileStore else kind()
    boards = [Board(store, rank, 3) for rank in range(3)]
    said: list[str] = []
    for number in range(1, later + 2 * LOOKS):
        said.append(boards[0].tell(Wait(EPOCH, 3, "a.py:1", number)))
        if number > later:
            said.append(boards[1].tell(Wait(COLLECTIVE, 4, "a.py:2", number - later)))
        if said[-1]:
            break
    assert said[-1].startswith("a.py:1: rank 0 waits")
    thread = threading.Thread(target=boards[1].end, args=(said[-1],))
    thread.start()
    boards[0].end(said[-1])
    thread.join()
    assert boards[2].tell(Wait(EPOCH, 3, "a.py:1", 1)) == said[-1]
