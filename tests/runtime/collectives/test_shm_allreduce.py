"""Sums of members through shared memory, all of them in one process."""

import threading
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.collectives import shm_allreduce as boards_module
from polyrhythm.runtime.collectives.shm_allreduce import (
    AWAITED,
    CHUNK,
    CHUNKS,
    MOST_MEMBERS,
    SharedBuffers,
    can_add_up,
    cut,
    form_shared_buffers,
)
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.rate_limit import RATE
from tests.runtime.members import together

LIMIT = timedelta(seconds=20)

pytestmark = pytest.mark.usefixtures("one_host")


def formed(size: int = 2) -> list[SharedBuffers | None]:
    store = HashStore()
    return together(lambda rank: form_shared_buffers(store, rank, size, LIMIT, LIMIT), size)


def buffers(size: int = 2) -> list[SharedBuffers]:
    found = [side for side in formed(size) if side is not None]
    assert len(found) == size
    return found


def close(sides: list[SharedBuffers]) -> None:
    for side in sides:
        side.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_have_the_bits_of_one_sum(size: int) -> None:
    """Of vectors shorter and longer than a chunk and than a buffer, again and again."""
    sides, generator = buffers(size), torch.Generator().manual_seed(0)
    for length in [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNKS * CHUNK + 3, *range(2, 2 * CHUNKS)]:
        vectors = list(torch.randn(size, length, generator=generator))
        expected = added(vectors)
        together(lambda rank, vectors=vectors: sides[rank].add_up(vectors[rank]), size)  # type: ignore[misc]
        for vector in vectors:
            assert torch.equal(vector, expected)
    close(sides)


def added(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Their sum, each chunk's parts by themselves."""
    total, starts = torch.empty_like(vectors[0]), range(0, len(vectors[0]), CHUNK)
    for start, parts in zip(starts, cut(len(total), len(vectors)), strict=True):
        for first, last, order in parts:
            shown = [vectors[rank][start + first : start + last] for rank in order]
            total[start + first : start + last] = sum(shown[1:], shown[0])
    return total


@given(length=st.integers(1, 10**7), size=st.integers(2, 9))
def test_parts_cover_a_vector_once(length: int, size: int) -> None:
    chunks = cut(length, size)
    bounds = [(CHUNK * n + a, CHUNK * n + b) for n, parts in enumerate(chunks) for a, b, _ in parts]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert all(a < b for a, b in bounds)
    assert all(sorted(order) == list(range(size)) for parts in chunks for *_, order in parts)


def test_who_sleeps_is_woken_up() -> None:
    """The second member begins when the first one is asleep."""
    sides, vectors = buffers(), [torch.ones(3), torch.ones(3)]
    together(lambda rank: sides[rank].add_up(torch.zeros(1)))

    def act(rank: int) -> None:
        while rank == 1 and not sides[0]._own[AWAITED]:
            pass
        sides[rank].add_up(vectors[rank])

    together(act)
    assert [vector.tolist() for vector in vectors] == [[2.0] * 3] * 2
    close(sides)


def test_meanwhile_comes_when_the_other_one_can_go_on() -> None:
    """It waits for the other member, who is through without it."""
    sides, over, seen = buffers(), threading.Event(), []

    def wait() -> None:
        seen.append(over.wait(LIMIT.total_seconds()))

    def act(rank: int) -> None:
        sides[rank].add_up(torch.ones(1), None if rank else wait)
        if rank:
            over.set()

    together(act)
    assert seen == [True]
    close(sides)


def test_who_waits_is_let_go() -> None:
    sides = buffers()

    def act(rank: int) -> None:
        if rank == 0:
            sides[0].end()
            return
        with pytest.raises(OSError, match=r"gone|reset"):
            sides[1].add_up(torch.ones(1))

    together(act)
    close(sides)


def test_what_was_shown_is_taken_though_its_owner_is_gone() -> None:
    sides, vector, gone = buffers(), torch.ones(2), threading.Event()

    def act(rank: int) -> None:
        sides[rank].add_up(torch.zeros(1))
        if rank == 0:
            sides[0]._publish(np.full(2, 3.0, np.float32), 2)
            sides[0].end()
            sides[0].close()
            gone.set()
        else:
            gone.wait(LIMIT.total_seconds())
            sides[1].add_up(vector)

    together(act)
    assert vector.tolist() == [4.0, 4.0]
    with pytest.raises(ConnectionResetError, match="a member is gone"):
        sides[1].add_up(vector)
    close(sides)


def test_different_lengths_are_named() -> None:
    sides = buffers()

    def act(rank: int) -> str:
        with pytest.raises(PolyrhythmError) as caught:
            sides[rank].add_up(torch.ones(4 + rank))
        return str(caught.value)

    first, second = together(act)
    assert first.startswith("a vector of 4 numbers here, of 5 there; all members sum up the same tensors")
    assert second.startswith("a vector of 5 numbers here, of 4 there")
    close(sides)


@pytest.mark.parametrize(("name", "value"), [(ADDRESS, "127.0.0.1"), (RATE, "1e6")])
def test_no_boards_where_numbers_travel(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert formed() == [None, None]


def test_no_boards_across_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    all_buffers = iter(["here", "there"])
    monkeypatch.setattr(boards_module, "common_ground", lambda: next(all_buffers))
    assert formed() == [None, None]


def test_no_boards_of_too_many() -> None:
    assert form_shared_buffers(HashStore(), 0, MOST_MEMBERS + 1, LIMIT, LIMIT) is None


def test_what_can_be_added() -> None:
    plain = torch.ones(2, 2)
    assert can_add_up([plain])
    for tensors in (
        [plain, plain],
        [plain.double()],
        [torch.ones(4, 4).t()[:, :2]],
        [torch.empty(0)],
        [plain.to_sparse()],
        [plain.to("meta")],
    ):
        assert not can_add_up(tensors)
