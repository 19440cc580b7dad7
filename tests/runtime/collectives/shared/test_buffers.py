"""Sums and broadcasts through memory, all members in one process, which gives its own vectors to read to itself."""

import os
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.collectives.shared import peer_memory
from polyrhythm.runtime.collectives.shared.buffers import LONG, SHORT, WINDOW, SharedBuffers
from polyrhythm.runtime.collectives.shared.kinds import KINDS, Kind, call_of, is_vector, kind_of
from polyrhythm.runtime.collectives.shared.parts import whole
from polyrhythm.runtime.collectives.shared.words import AWAITED, SLOTS
from tests.runtime.members import together

LIMIT = timedelta(seconds=20)
FLOATS = KINDS[torch.float32, "sum"]


def buffers(size: int = 2) -> list[SharedBuffers]:
    store = HashStore()
    return together(lambda rank: SharedBuffers(store, rank, size, LIMIT, LIMIT), size)


def close(sides: list[SharedBuffers]) -> None:
    for side in sides:
        side.close()


def lengths(item_bytes: int, size: int) -> list[int]:
    """Of vectors shorter and longer than each bound, and of many that follow each other."""
    bounds = [SHORT // size, LONG, WINDOW, 2 * SLOTS * WINDOW]
    around = [bound // item_bytes + more for bound in bounds for more in (0, 1)]
    return [1, 5, *around, *range(2, 2 * SLOTS)]


def check_sums(sides: list[SharedBuffers], kind: Kind, among: list[int]) -> None:
    size, generator = len(sides), torch.Generator().manual_seed(0)
    for length in among:
        vectors = list((100 * torch.randn(size, length, generator=generator)).to(kind.dtype))
        expected = added(vectors, kind)
        together(lambda rank, vectors=vectors: sides[rank].add_up(vectors[rank], kind), size)  # type: ignore[misc]
        assert all(torch.equal(vector, expected) for vector in vectors), length


def added(vectors: list[torch.Tensor], kind: Kind) -> torch.Tensor:
    """Their sum, each part by itself."""
    total = torch.empty_like(vectors[0])
    for first, last, order in whole(len(total), len(vectors), total.itemsize, len(total)):
        shown = [vectors[rank][first:last] for rank in order]
        part = shown[0]
        for other in shown[1:]:
            part = torch.maximum(part, other) if kind.operation is np.maximum else part + other
        total[first:last] = part
    return total


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_have_the_bits_of_one_sum(size: int) -> None:
    sides = buffers(size)
    check_sums(sides, FLOATS, lengths(4, size))
    close(sides)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_type_is_added_up(kind: Kind) -> None:
    for size in (2, 3):
        sides = buffers(size)
        check_sums(sides, kind, [3, 40_000, LONG])
        close(sides)


def test_two_members_show_their_vectors_where_they_cannot_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: peer_memory.PeerMemory, *_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(peer_memory.PeerMemory, "read", forbidden)
    sides = buffers()
    check_sums(sides, FLOATS, [LONG // 4, WINDOW])
    check_broadcasts(sides)
    close(sides)


@pytest.mark.parametrize("size", [2, 4])
def test_all_have_what_one_has(size: int) -> None:
    sides = buffers(size)
    check_broadcasts(sides)
    close(sides)


def check_broadcasts(sides: list[SharedBuffers]) -> None:
    """Sums between them, and more in a row than there are slots."""
    size, generator = len(sides), torch.Generator().manual_seed(0)
    for source, length in enumerate([1, 7, LONG - 1, LONG, 2 * SLOTS * WINDOW + 3, *range(1, 2 * SLOTS)]):
        vectors = list(torch.randint(256, (size, length), generator=generator, dtype=torch.uint8))
        expected = vectors[source % size].clone()
        together(lambda rank, own=vectors, one=source % size: sides[rank].spread(own[rank], one), size)  # type: ignore[misc]
        assert all(torch.equal(vector, expected) for vector in vectors), length
        if source % 3 == 0:
            check_sums(sides, FLOATS, [source + 1])


def test_who_sleeps_is_woken_up() -> None:
    """The second member begins when the first one is asleep."""
    sides, vectors = buffers(), [torch.ones(3), torch.ones(3)]
    together(lambda rank: sides[rank].add_up(torch.zeros(1), FLOATS))

    def act(rank: int) -> None:
        while rank == 1 and not sides[0]._words.own[AWAITED]:
            pass
        sides[rank].add_up(vectors[rank], FLOATS)

    together(act)
    assert [vector.tolist() for vector in vectors] == [[2.0] * 3] * 2
    close(sides)


def test_meanwhile_comes_when_the_other_one_can_go_on() -> None:
    """It waits for the other member, who is through without it."""
    sides, over, seen = buffers(), threading.Event(), []

    def wait() -> None:
        seen.append(over.wait(LIMIT.total_seconds()))

    def act(rank: int) -> None:
        sides[rank].add_up(torch.ones(1), FLOATS, None if rank else wait)
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
            sides[1].add_up(torch.ones(1), FLOATS)

    together(act)
    close(sides)


def test_what_was_shown_is_taken_though_its_owner_is_gone() -> None:
    sides, vector, gone = buffers(), torch.ones(2), threading.Event()

    def act(rank: int) -> None:
        sides[rank].add_up(torch.zeros(1), FLOATS)
        if rank == 0:
            slot = sides[0]._slot(call_of(FLOATS, 2))
            sides[0]._slots_of(FLOATS)[0, slot, :2] = 3.0
            sides[0]._publish()
            sides[0].end()
            sides[0].close()
            gone.set()
        else:
            gone.wait(LIMIT.total_seconds())
            sides[1].add_up(vector, FLOATS)

    together(act)
    assert vector.tolist() == [4.0, 4.0]
    with pytest.raises(ConnectionResetError, match="a member is gone"):
        sides[1].add_up(vector, FLOATS)
    close(sides)


def test_who_is_through_can_go_while_others_are_still_at_it() -> None:
    """Two of three leave at once; the third one finds all that it needs."""
    sides, vectors = buffers(3), [torch.ones(5) for _ in range(3)]

    def act(rank: int) -> None:
        for _ in range(3):
            sides[rank].add_up(vectors[rank], FLOATS)
        sides[rank].end()

    together(act, 3)
    assert [vector.tolist() for vector in vectors] == [[27.0] * 5] * 3
    close(sides)


@pytest.mark.parametrize("length", [4, LONG])
def test_different_lengths_are_named(length: int) -> None:
    sides = buffers()

    def act(rank: int) -> str:
        with pytest.raises(PolyrhythmError) as caught:
            sides[rank].add_up(torch.ones(length + rank), FLOATS)
        return str(caught.value)

    first, second = together(act)
    assert first.startswith(f"a sum of {length} float32 here, a sum of {length + 1} float32 there; all members")
    assert second.startswith(f"a sum of {length + 1} float32 here, a sum of {length} float32 there")
    close(sides)


def test_different_exchanges_are_named() -> None:
    sides = buffers()

    def act(rank: int) -> str:
        vector = torch.ones(4)
        sums = partial(sides[0].add_up, vector, FLOATS)
        exchange = partial(sides[1].spread, vector.view(torch.uint8), 0) if rank else sums
        with pytest.raises(PolyrhythmError) as caught:
            exchange()
        return str(caught.value)

    first, second = together(act)
    assert first.startswith("a sum of 4 float32 here, a broadcast of 16 bytes from rank 0 there; all members")
    assert second.startswith("a broadcast of 16 bytes from rank 0 here, a sum of 4 float32 there; all members")
    close(sides)


def test_what_can_be_added() -> None:
    plain = torch.ones(2, 2)
    assert is_vector([plain])
    for tensors in (
        [plain, plain],
        [torch.ones(4, 4).t()[:, :2]],
        [torch.empty(0)],
        [plain.to_sparse()],
        [plain.to("meta")],
        [plain.to(torch.complex64)],
    ):
        assert not is_vector(tensors)
    assert kind_of(torch.float32, ReduceOp.SUM) is FLOATS
    assert kind_of(torch.float32, ReduceOp.MAX) is None
    assert kind_of(torch.float32, ReduceOp.PRODUCT) is None
    assert kind_of(torch.int32, ReduceOp.SUM) is None


def test_what_is_read_after_its_owner_has_given_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is through itself, gives up, and may write into its vector while the other one still reads it."""
    sides, taken_back, late = buffers(), threading.Event(), threading.Event()
    together(lambda rank: sides[rank].add_up(torch.ones(1), FLOATS))
    read = peer_memory.PeerMemory.read

    def read_late(*arguments: Any) -> None:
        late.set()
        taken_back.wait(LIMIT.total_seconds())
        read(*arguments)

    def give_up() -> None:
        late.wait(LIMIT.total_seconds())
        sides[0].end()

    def act(rank: int) -> None:
        with pytest.raises(OSError, match=r"gone|reset"):
            sides[rank].spread(torch.ones(LONG, dtype=torch.uint8), 0)
        taken_back.set()

    monkeypatch.setattr(peer_memory.PeerMemory, "read", read_late)
    stop = threading.Thread(target=give_up)
    stop.start()
    together(act)
    stop.join()
    close(sides)


def test_who_is_gone_cannot_be_read() -> None:
    """A process of that number may be there again: what it shows at the address is not what was asked for."""
    memory = peer_memory.PeerMemory([2**22 - 1, os.getpid()])
    own = torch.ones(4)
    with pytest.raises(OSError, match="the memory of a member cannot be read: No such process"):
        memory.read(0, own.data_ptr(), own.data_ptr(), 16)
    with pytest.raises(OSError, match="Bad address"):
        memory.read(1, 4096, own.data_ptr(), 16)
    assert not peer_memory.answers(memory, 1, own.data_ptr(), 0)


def test_memory_that_is_not_the_members_is_not_read() -> None:
    """In containers that share a network both processes may have one number, and what is read there is their own."""
    found = list[int]()

    def gather(record: bytes) -> list[bytes]:
        if len(record) == 1:
            return [record, b"\1"]
        process, parent, address, number = peer_memory.unpack(record)
        found.append(number)
        return [record, peer_memory.pack((process, parent, address, number ^ 1))]

    assert peer_memory.open_peer_memory(gather) is None
    assert peer_memory.open_peer_memory(gather) is None
    assert len({*found}) == 2
