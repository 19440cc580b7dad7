"""Vectors that members lend to each other, all members in one process."""

import gc
import mmap
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from polyrhythm.runtime.collectives.shared import lent
from polyrhythm.runtime.collectives.shared.buffers import LONG, SharedBuffers
from polyrhythm.runtime.collectives.shared.kinds import KINDS, Kind
from polyrhythm.runtime.collectives.shared.lent import MOST, SPARED, STORAGES, Borrowed, Lender, file_system_of
from polyrhythm.runtime.collectives.shared.words import DEVICE, INODE, LENT, LIVE, PROCESS, WORDS
from tests.runtime.collectives.shared.test_buffers import FLOATS, added, buffers, close
from tests.runtime.members import together

LENGTH = LONG // 4 + 5


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """What a test has lent has gone with it."""
    yield
    gc.collect()
    assert not lent.live()


def drawn(size: int, kind: Kind, length: int = LENGTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(100 * torch.randn(length, generator=generator)).to(kind.dtype) for _ in range(size)]


def check(sides: list[SharedBuffers], vectors: list[torch.Tensor], kind: Kind, lends: tuple[bool, ...]) -> None:
    """That all have the bits of one sum, each lending its vector or not."""
    values = drawn(len(sides), kind, len(vectors[0]))
    for vector, value in zip(vectors, values, strict=True):
        vector.copy_(value)
    together(lambda rank: sides[rank].add_up(vectors[rank], kind, lends=lends[rank]), len(sides))
    assert all(torch.equal(vector, added(values, kind)) for vector in vectors)


def shared(vectors: list[torch.Tensor]) -> list[bool]:
    return [vector.is_shared() for vector in vectors]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_lent_vectors_have_the_bits_of_one_sum(kind: Kind, size: int) -> None:
    sides, vectors = buffers(size), drawn(size, kind, LONG + 5)
    for time in range(3):
        check(sides, vectors, kind, (True,) * size)
        assert shared(vectors) == [time > 0] * size
    close(sides)


@pytest.mark.parametrize("size", [2, 3])
def test_members_need_not_all_lend(size: int) -> None:
    """Nor always; and what is lent is added up where it is again."""
    sides, vectors = buffers(size), drawn(size, FLOATS)
    patterns = [(True,) * size, (True,) * size, (False, *(True,) * (size - 1)), (True, *(False,) * (size - 1))]
    for lends in [*reversed(patterns), (True,) * size, (False,) * size, *patterns]:
        check(sides, vectors, FLOATS, lends)
    assert all(sides[0]._borrowed._found)
    close(sides)


def test_several_vectors_in_turn() -> None:
    sides = buffers(3)
    several = [drawn(3, FLOATS, LENGTH + more) for more in range(3)]
    for _ in range(3):
        for vectors in several:
            check(sides, vectors, FLOATS, (True,) * 3)
    assert sorted(segment.number for segment in STORAGES.values()) == list(range(9))
    close(sides)


def test_what_comes_once_stays_where_it_is() -> None:
    sides = buffers()
    for _ in range(3):
        vectors = drawn(2, FLOATS)
        check(sides, vectors, FLOATS, (True, True))
        assert shared(vectors) == [False, False]
    close(sides)


def test_parts_of_a_storage_stay_where_they_are() -> None:
    sides, storages = buffers(), drawn(2, FLOATS, LENGTH + 1)
    for _ in range(3):
        check(sides, [storage[1:] for storage in storages], FLOATS, (True, True))
    assert shared(storages) == [False, False]
    close(sides)


def test_nor_is_a_part_of_one_that_is_lent() -> None:
    sides, storages = buffers(3), drawn(3, FLOATS, LENGTH + 1)
    for _ in range(2):
        check(sides, storages, FLOATS, (True,) * 3)
    for _ in range(2):
        check(sides, [storage[1:] for storage in storages], FLOATS, (True,) * 3)
    close(sides)


def test_a_storage_that_torch_has_moved_again_is_kept() -> None:
    """As it moves one that is sent to another process by the name of a file."""
    sides, vectors = buffers(3), drawn(3, FLOATS)
    for _ in range(2):
        check(sides, vectors, FLOATS, (True,) * 3)
    vectors[1].untyped_storage()._share_filename_cpu_()
    for _ in range(2):
        check(sides, vectors, FLOATS, (True,) * 3)
    assert len(STORAGES) == 2
    close(sides)


def test_a_move_that_fails_leaves_nothing_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left, tried = tmp_path / "torch_1_2_0", list[int]()

    def fail(storage: torch.UntypedStorage) -> NoReturn:
        left.touch()
        tried.append(storage.nbytes())
        raise RuntimeError(f"unable to allocate shared memory(shm) for file </{left.name}>: No space left on device")

    monkeypatch.setattr(lent, "ROOM", tmp_path)
    monkeypatch.setattr(lent, "file_system_of", lambda _: "tmpfs")
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", fail)
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    assert [lender.lend(vector) for _ in range(4)] == [False] * 4
    assert len(tried) == 1
    assert not left.exists()


@contextmanager
def limited(what: int, limit: int) -> Iterator[None]:
    """This process, by the kernel."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def test_a_move_that_fails_gives_its_descriptor_and_memory_back() -> None:
    """Each generation tries anew."""
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    before = descriptors()
    with limited(resource.RLIMIT_FSIZE, vector.nbytes // 2):
        assert [lender.lend(vector) for _ in range(2)] == [False, False]
    assert not lender._moves
    assert descriptors() == before


def test_the_last_descriptors_are_the_scripts() -> None:
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    with limited(resource.RLIMIT_NOFILE, descriptors() + SPARED - 2):
        assert [lender.lend(vector) for _ in range(2)] == [False, False]
    assert lender.lend(vector)


def test_nothing_is_lent_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "room", lambda: 2**40)
    monkeypatch.setattr(lent, "spares_descriptors", lambda: True)
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    free = os.dup(0)
    os.close(free)
    with limited(resource.RLIMIT_NOFILE, free):
        assert [lender.lend(vector) for _ in range(2)] == [False, False]
    assert not lender._moves


def test_nothing_is_lent_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "room", lambda: 2 * 2 * 4 * LENGTH - 1)
    sides, vectors = buffers(), drawn(2, FLOATS)
    for _ in range(3):
        check(sides, vectors, FLOATS, (True, True))
    assert shared(vectors) == [False, False]
    close(sides)


def test_nothing_is_lent_where_shared_memory_is_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without a mount: the kernel would write what is lent to the disk again and again."""
    monkeypatch.setattr(lent, "file_system_of", lambda _: "ext4")
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    assert [lender.lend(vector) for _ in range(2)] == [False, False]
    assert not vector.untyped_storage().is_shared()


def test_what_is_mounted_is_found_by_its_device() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/dev/shm")) == "tmpfs"


def test_where_one_cannot_open_nobody_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, vectors, opened = buffers(3), drawn(3, FLOATS), list[int]()
    original = Borrowed.open

    def refuse(borrowed: Borrowed, byte_count: int) -> bool:
        opened.append(borrowed._rank)
        return original(borrowed, byte_count) and borrowed._rank != 1

    monkeypatch.setattr(Borrowed, "open", refuse)
    for _ in range(4):
        check(sides, vectors, FLOATS, (True,) * 3)
    assert sorted(opened) == [0, 1, 2]
    close(sides)


def test_a_vector_that_was_given_up_is_not_written_any_more() -> None:
    """The second member is stopped in the middle of a sum, and goes on when the first one has left."""
    sides, vectors = buffers(), drawn(2, FLOATS)
    for _ in range(2):
        check(sides, vectors, FLOATS, (True, True))
    late = sides[1]._borrowed.vectors(vectors[1].view(torch.uint8))[0]
    sides[1].end()
    vectors[0].fill_(1.0)
    with pytest.raises(OSError, match=r"gone|reset"):
        sides[0].add_up(vectors[0], FLOATS, lends=True)
    late.fill_(7)
    assert torch.equal(vectors[0], torch.ones(LENGTH))
    assert vectors[0].untyped_storage()._cdata not in STORAGES
    close(sides)


def test_what_was_taken_back_is_not_lent_again() -> None:
    vectors = drawn(2, FLOATS)
    sides = buffers()
    for _ in range(2):
        check(sides, vectors, FLOATS, (True, True))
    lent.take_back(vectors[0])
    close(sides)
    sides = buffers()
    for _ in range(3):
        check(sides, vectors, FLOATS, (True, True))
    assert vectors[0].untyped_storage()._cdata not in STORAGES
    close(sides)


def test_a_storage_outlives_the_members_that_it_was_lent_to() -> None:
    vectors = drawn(2, FLOATS)
    for _ in range(3):
        sides = buffers()
        check(sides, vectors, FLOATS, (True, True))
        check(sides, vectors, FLOATS, (True, True))
        close(sides)
    assert len(STORAGES) == 2


def two() -> tuple[Lender, Borrowed]:
    """A member that lends, and another one's view of it."""
    words = memoryview(bytearray(2 * WORDS * 8)).cast("Q")
    return Lender(words[:WORDS], 2), Borrowed([words[word::WORDS] for word in range(WORDS)], 1)


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def lend(lender: Lender, vector: torch.Tensor) -> None:
    assert lender.lend(vector) or lender.lend(vector)


def test_what_is_no_more_is_let_go() -> None:
    (lender, borrowed), (first, second) = two(), drawn(2, FLOATS)
    lend(lender, first)
    assert borrowed.some_are_new
    assert borrowed.open(first.nbytes)
    del first
    lend(lender, second)
    borrowed.let_go()
    assert borrowed.open(second.nbytes)
    assert len(borrowed._found) == 1
    lender.know(second)
    lend(lender, second)
    assert not borrowed.some_are_new


@pytest.mark.parametrize("broadcast", [False, True])
def test_it_is_let_go_when_something_else_is_exchanged(broadcast: bool) -> None:
    """As a script makes another model: memory for both may not be there."""
    sides, vectors, others = buffers(3), drawn(3, FLOATS), drawn(3, FLOATS)
    for _ in range(2):
        check(sides, vectors, FLOATS, (True,) * 3)
    vectors.clear()
    for _ in range(2):  # who is ahead does not see that others have let go of theirs
        if broadcast:
            together(lambda rank: sides[rank].spread(others[rank].view(torch.uint8), 0), 3)
        else:
            check(sides, others, FLOATS, (False,) * 3)
    assert not any(side._borrowed._found for side in sides)
    assert not any(side._lender._known for side in sides)
    close(sides)


@pytest.mark.parametrize("word", [INODE, DEVICE])
def test_another_file_is_not_opened(monkeypatch: pytest.MonkeyPatch, word: int) -> None:
    """As the descriptor means one in a container whose processes have other numbers; it may be a device."""
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    borrowed._columns[word][0] += 1
    opened = list[str]()
    monkeypatch.setattr(os, "open", lambda path, _: opened.append(path))
    assert not borrowed.open(vector.nbytes)
    assert not opened


def test_a_file_of_another_length_is_not_opened() -> None:
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    assert not borrowed.open(vector.nbytes + 1)
    assert os.fstat(STORAGES[vector.untyped_storage()._cdata].fd).st_size == vector.nbytes


def test_what_is_opened_keeps_no_descriptor() -> None:
    """A process has a thousand of them, or fewer; members and vectors are many."""
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    before = descriptors()
    assert borrowed.open(vector.nbytes)
    assert descriptors() == before


def test_a_process_that_is_gone_lends_nothing() -> None:
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    borrowed._columns[PROCESS][0] = 2**22 + 1
    assert not borrowed.open(vector.nbytes)


def test_so_many_vectors_are_lent_at_a_time() -> None:
    lender, borrowed = two()
    vectors = drawn(MOST + 1, FLOATS, 8)
    for vector in vectors[:MOST]:
        lend(lender, vector)
    assert borrowed._columns[LIVE][0] == 2**MOST - 1
    assert not lender.lend(vectors[MOST])
    assert not lender.lend(vectors[MOST])
    assert borrowed._columns[LENT][0] == 0
    del vectors[3], vector
    assert lender.lend(vectors[-1])


def test_what_a_child_writes_stays_with_it() -> None:
    (lender, _), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    values = vector.clone()
    if not (child := os.fork()):
        vector.fill_(7)
        os._exit(not vector.eq(7).all() or bool(STORAGES))
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(vector, values)


def test_a_fork_waits_until_a_vector_is_moved() -> None:
    """The child would not know of it, and write into its parent's."""
    moving, forking, order = threading.Event(), threading.Event(), list[str]()

    def move() -> None:
        with lent.LOCK:
            moving.set()
            forking.wait()
            lent.room()  # another thread may go on meanwhile
            order.append("moved")

    thread = threading.Thread(target=move)
    thread.start()
    moving.wait()
    forking.set()
    if not (child := os.fork()):
        os._exit(not lent.LOCK.acquire(blocking=False))
    order.append("forked")
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert order == ["moved", "forked"]


def test_a_vector_begins_with_its_memory() -> None:
    (lender, _), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    assert vector.data_ptr() % mmap.PAGESIZE == 0
    assert os.fstat(STORAGES[vector.untyped_storage()._cdata].fd).st_size == vector.nbytes
