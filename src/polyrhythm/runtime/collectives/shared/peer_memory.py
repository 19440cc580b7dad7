"""Members read each other's vectors where they are, through the kernel: nothing is written to be shown.

What one core writes and another one reads, again and again, moves between their caches line by line, which is several
times as slow as to write what only one has. A container or a kernel may forbid it.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

PR_SET_PTRACER: Final = 0x59616D61


class Range(ctypes.Structure):
    """The kernel's ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class PeerMemory:
    """The memory of the other members.

    Args:
        processes: of all members, by rank.
    """

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        self._read = find_read()
        self._here, self._there = Range(), Range()
        self._both = ctypes.byref(self._here), ctypes.byref(self._there)

    def read(self, rank: int, source: int, target: int, count: int) -> None:
        """Copy `count` bytes at the address `source` of that member to the address `target` of this one.

        Raises:
            OSError: if it is gone, or forbids it.
        """
        here, there = self._here, self._there
        while count:
            here.base, here.length, there.base, there.length = target, count, source, count
            read = self._read(self._processes[rank], self._both[0], 1, self._both[1], 1, 0)
            if read <= 0:
                number = ctypes.get_errno()
                raise OSError(number, f"the memory of a member cannot be read: {os.strerror(number)}")
            source, target, count = source + read, target + read, count - read


def open_peer_memory(gather: Callable[[bytes], list[bytes]]) -> PeerMemory | None:
    """The memory of the members that `gather` reaches, if each can read that of all others; all get the same answer.

    Raises:
        OSError: if one is gone.
    """
    # A number that nobody else has: elsewhere, as in another container, our process may have the number of theirs.
    example = ctypes.c_uint64(int.from_bytes(os.urandom(8), "little"))
    own = (os.getpid(), os.getppid(), ctypes.addressof(example), example.value)
    records = [unpack(record) for record in gather(pack(own))]
    let_siblings_read({parent for _, parent, *_ in records})
    gather(b"\1")
    memory = PeerMemory([process for process, *_ in records]) if find_read() else None
    found = memory is not None and all(answers(memory, rank, *there) for rank, (_, _, *there) in enumerate(records))
    everywhere = all(record == b"\1" for record in gather(b"\1" if found else b"\0"))
    return memory if everywhere else None


def answers(memory: PeerMemory, rank: int, address: int, number: int) -> bool:
    found = ctypes.c_uint64()
    try:
        memory.read(rank, address, ctypes.addressof(found), 8)
    except OSError:
        return False
    return found.value == number


def let_siblings_read(parents: set[int]) -> None:
    """Where the kernel lets only an ancestor read a process (Yama's scope 1), let the parent's other children do it."""
    if len(parents) == 1 and hasattr(LIBRARY, "prctl"):
        LIBRARY.prctl(PR_SET_PTRACER, ctypes.c_ulong(*parents), 0, 0, 0)


def find_read() -> Any:
    return getattr(LIBRARY, "process_vm_readv", None)


def load() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "process_vm_readv"):
        library.process_vm_readv.restype = ctypes.c_ssize_t
        library.process_vm_readv.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        )
    if hasattr(library, "mmap"):
        number = ctypes.c_int
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long)
    return library


LIBRARY: Final = load()


def pack(numbers: tuple[int, ...]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def unpack(record: bytes) -> list[int]:
    return [int.from_bytes(record[start : start + 8], "little") for start in range(0, len(record), 8)]
