"""Shared vectors."""

import contextlib
import fcntl
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.wire.shared_memory import SHORT_BYTES, SharedVector, fence, memory_bytes


def test_two_mappings_see_the_same_numbers_and_words() -> None:
    mine = SharedVector.create(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yours = SharedVector(os.dup(mine.fd), 1000, writable=False)
    mine.values.copy_(torch.arange(1000.0))
    mine.words[3] = 7
    assert torch.equal(yours.values, torch.arange(1000.0))
    assert yours.words[3] == 7
    assert mine.values.data_ptr() % 64 == 0


def test_readers_cannot_write() -> None:
    mine = SharedVector.create(4)
    yours = SharedVector(os.dup(mine.fd), 4, writable=False)
    with pytest.raises(TypeError, match="read-only"):
        yours.words[0] = 1


def test_the_size_is_sealed() -> None:
    vector = SharedVector.create(4)
    with pytest.raises(PermissionError):
        os.ftruncate(vector.fd, 0)


def test_memory_that_is_not_ours_is_refused() -> None:
    unsealed = os.memfd_create("foreign", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, memory_bytes(4))
    with pytest.raises(PolyrhythmError, match="not sealed"):
        SharedVector(os.dup(unsealed), 4)
    fcntl.fcntl(unsealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    SharedVector(os.dup(unsealed), 4)
    with pytest.raises(PolyrhythmError, match="shared memory for 5 numbers has 80 bytes"):
        SharedVector(unsealed, 5)


def open_inodes() -> set[int]:
    """What this process has open; other threads may close theirs meanwhile."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.fstat(int(entry.name)).st_ino)
    return inodes


def test_descriptors_are_closed_with_the_vector() -> None:
    vector = SharedVector.create(4)
    inode = os.fstat(vector.fd).st_ino
    assert inode in open_inodes()
    del vector
    assert inode not in open_inodes()


@pytest.mark.parametrize("elements", [5, SHORT_BYTES // 4, SHORT_BYTES // 4 + 1])
def test_a_vector_is_filled_from_any_tensor(elements: int) -> None:
    vector, numbers = SharedVector.create(elements), torch.arange(elements, dtype=torch.float32)
    vector.fill(numbers)
    assert torch.equal(vector.values, numbers)
    vector.fill(vector.values)
    assert torch.equal(vector.values, numbers)
    vector.fill(torch.stack((numbers, -numbers), 1)[:, 1])
    assert torch.equal(vector.values, -numbers)
    vector.fill(numbers.double())
    assert torch.equal(vector.values, numbers)


def test_a_vector_takes_only_as_many_numbers_as_it_has() -> None:
    with pytest.raises(PolyrhythmError, match="3 numbers do not fill a vector of 2"):
        SharedVector.create(2).fill(torch.ones(3))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("elements", [3, SHORT_BYTES // 4 + 5])
def test_numbers_are_copied_to_any_tensor(elements: int, threads: int) -> None:
    vector = SharedVector.create(elements)
    numbers = vector.values.copy_(torch.randn(elements, generator=torch.Generator().manual_seed(1)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for out in (torch.zeros(elements), torch.zeros(elements, 2)[:, 1], torch.zeros(elements).double()):
            vector.copy_to(out, 0, 2)
            assert torch.equal(out[:2].float(), numbers[:2])
            assert not out[2:].any()
            vector.copy_to(out, 2, elements)
            assert torch.equal(out.float(), numbers)
    finally:
        torch.set_num_threads(before)


def test_no_more_is_copied_than_there_is() -> None:
    for elements in (2, 4):
        with pytest.raises(RuntimeError, match="must match the size"):
            SharedVector.create(elements).copy_to(torch.zeros(3), 0, 4)


def fence_often(_: int) -> None:
    for _number in range(5000):
        fence()


def test_threads_do_not_get_into_each_others_fences() -> None:
    """A switch between any two instructions of one is harmless to the others."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fence_often, range(4)))
    finally:
        sys.setswitchinterval(before)
