"""Vectors in memory that several processes of one host share, without a file: made by one, handed over a Unix socket.

A shared vector starts with a few 64-bit words that say who has what. Its maker seals its size, so nobody can cut it
off under someone who reads it.
"""

import ctypes
import fcntl
import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final

import torch

from polyrhythm.errors import FrameError, UsageError

HEADER_BYTES: Final = 64
"""One cache line, so that the numbers behind it are aligned to 64 bytes."""

SHORT_BYTES: Final = 16384
"""Torch takes longer to see what it has to copy than to copy so many; it shares out longer vectors among threads."""

SEQUENCE: Final = 0
"""Word of a shared parameter vector that is odd while it is being written."""
VERSION: Final = 1
"""Word of a shared parameter vector with the version of its values."""
CHUNK: Final = 2**20
"""Elements that a reader copies before it looks whether they have changed meanwhile."""


class OwnLock(threading.local):
    """A lock for each thread, held by it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


FENCE: Final = OwnLock()


def fence() -> None:
    """Order memory accesses before and after; the hardware may otherwise swap reads of different addresses."""
    lock = FENCE.lock
    lock.release()  # followed by an acquire of the same lock it is a full barrier on x86 and ARM
    lock.acquire()


class SharedVector:
    """So many float32 in shared memory.

    Args:
        fd: descriptor of the memory; the vector owns it from now on, also if it is refused.
        elements: numbers in it.
        writable: whether this process may change them.
        sparse: whether much of it may never be used: then a page is there when it is touched first.

    Attributes:
        values: tensor of shape (elements,).
        words: eight 64-bit words for the owners' protocol.

    Raises:
        FrameError: if the memory is not sealed or has another size.
    """

    def __init__(self, fd: int, elements: int, writable: bool = True, sparse: bool = False) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False  # not by `__del__`: modules may be gone at the end
        check_memory(fd, elements)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (0 if sparse else getattr(mmap, "MAP_POPULATE", 0))
        memory = mmap.mmap(fd, memory_bytes(elements), flags, access)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self.values = torch.frombuffer(memory, dtype=torch.float32, count=elements, offset=HEADER_BYTES)
        self._address, self._bytes = self.values.data_ptr(), 4 * elements
        self.words = memoryview(memory)[:HEADER_BYTES].cast("Q")

    def fill(self, source: torch.Tensor) -> None:
        here, there = self._address, source.data_ptr()
        if 4 * source.numel() != self._bytes:
            raise UsageError(f"{source.numel()} numbers do not fill a vector of {self._bytes // 4}")
        if here == there:
            return
        if outruns_torch(source):
            ctypes.memmove(here, there, self._bytes)
        else:
            self.values.copy_(source)

    def copy_to(self, out: torch.Tensor, start: int, count: int) -> None:
        part, own = out[start : start + count], self.values[start : start + count]
        if len(part) == len(own) and outruns_torch(part):
            ctypes.memmove(part.data_ptr(), own.data_ptr(), 4 * len(part))
        else:
            part.copy_(own)

    def begin(self) -> None:
        """Its owner changes the values from now on; who reads them meanwhile can tell."""
        self.words[SEQUENCE] += 1
        fence()

    def end(self, version: int) -> None:
        """The values are those of `version`."""
        self.words[VERSION] = version
        fence()
        self.words[SEQUENCE] += 1

    @classmethod
    def create(cls, elements: int, sparse: bool = False) -> "SharedVector":
        """New shared memory, all zeros.

        Example:
            >>> vector = SharedVector.create(3)
            >>> vector.values.fill_(2.0), SharedVector(os.dup(vector.fd), 3, writable=False).values.sum()
            (tensor([2., 2., 2.]), tensor(6.))
        """
        fd = os.memfd_create("polyrhythm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, memory_bytes(elements))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(fd, elements, sparse=sparse)


def settled(memory: SharedVector, version: int) -> tuple[int, int] | None:
    """Sequence number and version of parameters of at least `version` that nobody writes at the moment."""
    sequence, newest = memory.words[SEQUENCE], memory.words[VERSION]
    if sequence % 2 or newest < version:
        return None
    fence()
    return sequence, newest


def read_untorn(memory: SharedVector, out: torch.Tensor, version: int) -> int | None:
    """Copy shared parameters of at least `version` into `out` while their owner may change them.

    Returns:
        the version that was read; None if it is not there yet or the owner was writing, and `out` is then undefined.
    """
    if (found := settled(memory, version)) is None:
        return None
    sequence, newest = found
    for start in range(0, out.numel(), CHUNK):
        memory.copy_to(out, start, CHUNK)
        fence()
        if memory.words[SEQUENCE] != sequence:
            return None
    return newest


def hand_untorn(memory: SharedVector, take: Callable[[torch.Tensor], object], version: int) -> int | None:
    """As `read_untorn`, but `take` is given the shared vector itself, to copy from it wherever it likes."""
    if (found := settled(memory, version)) is None:
        return None
    sequence, newest = found
    take(memory.values)
    fence()
    return newest if memory.words[SEQUENCE] == sequence else None


def outruns_torch(numbers: torch.Tensor) -> bool:
    """Whether the C library copies these numbers sooner than torch, which looks what they are, and copies slower."""
    return (4 * numbers.numel() <= SHORT_BYTES or torch.get_num_threads() == 1) and is_plain(numbers)


def is_plain(numbers: torch.Tensor) -> bool:
    return numbers.is_cpu and numbers.is_contiguous() and numbers.dtype == torch.float32


def memory_bytes(elements: int) -> int:
    return HEADER_BYTES + 4 * elements


def check_memory(fd: int, elements: int) -> None:
    """The memory is as long as announced and stays so."""
    size = os.fstat(fd).st_size
    sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    if size != memory_bytes(elements) or not sealed:
        raise FrameError(f"shared memory for {elements} numbers has {size} bytes or is not sealed; is it ours?")
