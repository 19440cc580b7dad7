"""Sums of two members through shared memory, both sides in one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime import pair
from polyrhythm.runtime.nodes import ADDRESS
from polyrhythm.runtime.pacing import RATE
from polyrhythm.runtime.pair import AWAITED, CHUNK, CHUNKS, Pair, can_add, form_pair

LIMIT = timedelta(seconds=20)

Found = TypeVar("Found")


@pytest.fixture(autouse=True)
def one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ADDRESS, RATE):
        monkeypatch.delenv(name, raising=False)


def together(act: Callable[[int], Found]) -> list[Found]:
    """What each member finds, both at once."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, range(2)))


def formed() -> list[Pair | None]:
    store = HashStore()
    return together(lambda rank: form_pair(store, rank, LIMIT, LIMIT))


def pairs() -> list[Pair]:
    found = [side for side in formed() if side is not None]
    assert len(found) == 2
    return found


def close(sides: list[Pair]) -> None:
    for side in sides:
        side.close()


def test_both_have_the_bits_of_the_sum() -> None:
    """Of vectors shorter and longer than a chunk and than a ring, again and again."""
    sides, generator = pairs(), torch.Generator().manual_seed(0)
    for length in [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNKS * CHUNK + 3, *range(2, 2 * CHUNKS)]:
        vectors = list(torch.randn(2, length, generator=generator))
        expected = vectors[0] + vectors[1]
        together(lambda rank, vectors=vectors: sides[rank].add(vectors[rank]))  # type: ignore[misc]
        for vector in vectors:
            assert torch.equal(vector, expected)
    close(sides)


def test_who_sleeps_is_woken_up() -> None:
    """The second member begins when the first one is asleep."""
    sides, vectors = pairs(), [torch.ones(3), torch.ones(3)]
    together(lambda rank: sides[rank].add(torch.zeros(1)))

    def act(rank: int) -> None:
        while rank == 1 and not sides[0]._words[AWAITED]:
            pass
        sides[rank].add(vectors[rank])

    together(act)
    assert [vector.tolist() for vector in vectors] == [[2.0] * 3] * 2
    close(sides)


def test_meanwhile_comes_when_the_other_one_can_go_on() -> None:
    """It waits for the other member, who is through without it."""
    sides, over, seen = pairs(), threading.Event(), []

    def wait() -> None:
        seen.append(over.wait(LIMIT.total_seconds()))

    def act(rank: int) -> None:
        sides[rank].add(torch.ones(1), None if rank else wait)
        if rank:
            over.set()

    together(act)
    assert seen == [True]
    close(sides)


def test_who_waits_is_let_go() -> None:
    sides = pairs()

    def act(rank: int) -> None:
        if rank == 0:
            sides[0].end()
            return
        with pytest.raises(OSError, match=r"gone|reset"):
            sides[1].add(torch.ones(1))

    together(act)
    close(sides)


def test_what_was_shown_is_taken_though_its_owner_is_gone() -> None:
    sides, vector, gone = pairs(), torch.ones(2), threading.Event()

    def act(rank: int) -> None:
        sides[rank].add(torch.zeros(1))
        if rank == 0:
            sides[0]._show(torch.full((2,), 3.0), 2)
            sides[0].end()
            sides[0].close()
            gone.set()
        else:
            gone.wait(LIMIT.total_seconds())
            sides[1].add(vector)

    together(act)
    assert vector.tolist() == [4.0, 4.0]
    with pytest.raises(ConnectionResetError, match="the other member is gone"):
        sides[1].add(vector)
    close(sides)


def test_different_lengths_are_named() -> None:
    sides = pairs()

    def act(rank: int) -> str:
        with pytest.raises(PolyrhythmError) as caught:
            sides[rank].add(torch.ones(4 + rank))
        return str(caught.value)

    first, second = together(act)
    assert first.startswith("a vector of 4 numbers here, of 5 there; all members sum up the same tensors")
    assert second.startswith("a vector of 5 numbers here, of 4 there")
    close(sides)


@pytest.mark.parametrize(("name", "value"), [(ADDRESS, "127.0.0.1"), (RATE, "1e6")])
def test_no_pair_where_numbers_travel(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert formed() == [None, None]


def test_no_pair_across_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter(["here", "there"])
    monkeypatch.setattr(pair, "common_ground", lambda: next(places))
    assert formed() == [None, None]


def test_what_can_be_added() -> None:
    plain = torch.ones(2, 2)
    assert can_add([plain])
    for tensors in (
        [plain, plain],
        [plain.double()],
        [torch.ones(4, 4).t()[:, :2]],
        [torch.empty(0)],
        [plain.to_sparse()],
        [plain.to("meta")],
    ):
        assert not can_add(tensors)
