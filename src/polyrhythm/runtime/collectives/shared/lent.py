"""Vectors that members lend to each other: the others map them, and read and write them where they are.

A storage moves into shared memory under all tensors that have it when it is exchanged for the second time, as
DistributedDataParallel's buckets are in each step; one that is exchanged once is not worth it. The others open it by
the owner's descriptor, and see by its inode that it is the one that is meant.
"""

# mypy: disable-error-code="no-untyped-call"

import mmap
import os
import re
import resource
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from polyrhythm.lines import first_to_say, say
from polyrhythm.runtime.collectives.shared.peer_memory import LIBRARY
from polyrhythm.runtime.collectives.shared.words import DEVICE, INODE, LENT, LIVE, PROCESS

ROOM: Final = Path("/dev/shm")
"""Where torch's shared memory comes from; in a container it is often small."""
MOST: Final = 62
"""Vectors of a member that are lent at a time: their numbers are bits of a word."""
SPARED: Final = 64
"""Descriptors that a process keeps for other things: each vector that it lends needs one."""
MAP_FIXED: Final = 0x10
FILE: Final = re.compile("</(torch_[^/>]+)>")
"""A file of torch's in `ROOM`, in its errors."""
COPIED: Final = "long vectors are copied at each exchange, which takes longer"


@dataclass(frozen=True, slots=True, eq=False)
class LentStorage:
    """A storage in shared memory: its number in this process, where it is here, and how others find it."""

    number: int
    storage: StorageWeakRef
    address: int
    byte_count: int
    fd: int
    inode: int
    device: int

    @property
    def is_there(self) -> bool:
        """Whether the storage is, and where it was: torch moves one again that is sent to a process by name."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return storage is not None and storage.data_ptr() == self.address

    def map_anew(self, fd: int, kind: int) -> None:
        """Give this process other memory at the same address."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        if LIBRARY.mmap(self.address, self.byte_count, protection, kind | MAP_FIXED, fd, 0) != self.address:
            raise MemoryError("a vector cannot be taken back from the members that it was lent to")


LOCK: Final = threading.RLock()
STORAGES: Final = dict[int, LentStorage]()
"""This process's, by storage. They outlive the members' generation, as the storages may."""


class Lender:
    """What one member lends.

    Args:
        own: this member's words.
        members: how many may lend at the same time on this host.
    """

    def __init__(self, own: memoryview, members: int) -> None:
        own[PROCESS] = os.getpid()
        self._own, self._members = own, members
        self._seen, self._known, self._moves = dict[int, StorageWeakRef](), set[LentStorage](), True

    def lend(self, vector: Tensor) -> bool:
        """Say in this member's words where the vector is; whether it is lent."""
        lent = self._lent_storage_of(vector)
        if lent is None:
            self.keep()
            return False
        self._own[LENT] = lent.fd << 16 | (lent not in self._known) << 8 | lent.number + 1
        self._own[INODE], self._own[DEVICE] = lent.inode, lent.device
        self._say_what_is_there()
        return True

    def know(self, vector: Tensor) -> None:
        """The others have opened it."""
        self._known.add(STORAGES[vector.untyped_storage()._cdata])

    def keep(self) -> None:
        """Say that the next vector is not lent."""
        self._own[LENT] = 0
        self._say_what_is_there()

    def _say_what_is_there(self) -> None:
        there = live()
        self._own[LIVE] = numbers_of(there)
        self._known.intersection_update(there)

    def _lent_storage_of(self, vector: Tensor) -> LentStorage | None:
        storage = vector.untyped_storage()
        if storage.nbytes() != vector.nbytes:
            return None
        found = STORAGES.get(storage._cdata)
        if found is not None and found.is_there:
            return found
        if storage.is_shared() or not self._moves or not self._comes_again(storage):
            return None
        return self._move(storage)

    def _move(self, storage: torch.UntypedStorage) -> LentStorage | None:
        try:
            return move(storage, self._members)
        except RuntimeError as error:  # there was no room after all, or a limit forbids it
            self._moves = False
            remove_left(str(error))
            tell_copied(f"{ROOM}: {without_file(error)}; see ulimit -f and ulimit -n")
            return None

    def _comes_again(self, storage: torch.UntypedStorage) -> bool:
        before = self._seen.get(storage._cdata)
        if before is not None and not before.expired():
            return True
        self._seen = {key: seen for key, seen in self._seen.items() if not seen.expired()}
        self._seen[storage._cdata] = StorageWeakRef(storage)
        return False


def live() -> list[LentStorage]:
    with LOCK:
        for key in [key for key, lent in STORAGES.items() if not lent.is_there]:
            del STORAGES[key]
        return list(STORAGES.values())


def numbers_of(storages: Sequence[LentStorage]) -> int:
    """As bits of a word."""
    return sum(1 << lent.number for lent in storages)


def move(storage: torch.UntypedStorage, members: int) -> LentStorage | None:
    """Move a storage into shared memory; None where all members together have no room there, or descriptors are few.

    Raises:
        RuntimeError: if there was none after all.
    """
    with LOCK:
        taken = {lent.number for lent in live()}
        number = next((number for number in range(MOST) if number not in taken), None)
        if number is None:
            return None
        if why := obstacle(2 * members * storage.nbytes()):
            tell_copied(why)
            return None
        fd, byte_count = storage._share_fd_cpu_()
        place, file = (storage.data_ptr(), byte_count), os.fstat(fd)
        lent = LentStorage(number, StorageWeakRef(storage), *place, fd, file.st_ino, file.st_dev)
        STORAGES[storage._cdata] = lent
        return lent


def obstacle(needed: int) -> str:
    """Why so many bytes cannot be lent, and the remedy; nothing if they can."""
    if room() < needed:
        return why_no_room(needed)
    if not spares_descriptors():
        return f"this process has fewer than {SPARED} free descriptors; raise ulimit -n"
    return ""


def why_no_room(needed: int) -> str:
    try:
        kind = file_system_of(ROOM)
    except OSError:
        return f"{ROOM} is not there; mount a tmpfs there"
    if kind != "tmpfs":
        return f"{ROOM} is no tmpfs{kind and f' but {kind}'}; mount a tmpfs there"
    return f"{ROOM} has not {needed / 1e6:,.0f} MB free; enlarge it, as with docker run --shm-size"


def without_file(error: RuntimeError) -> str:
    """What torch says, without the name of its file, which tells nobody anything."""
    return FILE.sub("a file", str(error)).partition("\n")[0]


@cache
def tell_copied(why: str) -> None:
    """Say once on a host why nothing is lent, and the remedy: all is as exact without, but slower."""
    if first_to_say(COPIED):
        say(f"{COPIED}: {why}")


def spares_descriptors() -> bool:
    try:
        taken = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their numbers are all that is needed
    except OSError:
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or taken + SPARED <= limit


def remove_left(error: str) -> None:
    """The file that torch leaves behind where it fails, and its descriptor, which would keep the memory."""
    if found := FILE.search(error):
        with suppress(OSError):
            (ROOM / found[1]).unlink()
        with suppress(OSError):  # where all descriptors are taken they cannot be listed
            close_left(f"{found[1]} (deleted)")


def close_left(name: str) -> None:
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that by which they were listed is closed
            if each.readlink().name == name:
                os.close(int(each.name))


def room() -> int:
    """None on a disk, to which the kernel would write what is lent again and again."""
    try:
        found, kind = os.statvfs(ROOM), file_system_of(ROOM)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if kind == "tmpfs" else 0


@cache
def file_system_of(place: Path) -> str:
    """Its kind; empty if it cannot be told.

    Raises:
        OSError: if there is no such place.
    """
    device = place.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number:
            return kind.split()[0]
    return ""


def take_back(vector: Tensor) -> None:
    """Give a lent vector memory of its own at its old address: one that still writes for an exchange that this member
    has given up, as after it was stopped, does not reach it any more.
    """
    with LOCK:
        kept, lent = vector.clone(), STORAGES.pop(vector.untyped_storage()._cdata)
        lent.map_anew(-1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        vector.copy_(kept)


def keep_apart_in_child() -> None:
    """After a fork: what the child writes into a lent vector stays there, as in any other."""
    try:
        for lent in live():
            lent.map_anew(lent.fd, mmap.MAP_PRIVATE)
    finally:
        STORAGES.clear()
        LOCK.release()


os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=keep_apart_in_child)


class Borrowed:
    """What the others lend to one member.

    Args:
        columns: all members' words, by word.
        rank: of this member.
    """

    def __init__(self, columns: list[memoryview], rank: int) -> None:
        self._columns, self._rank = columns, rank
        self._found = dict[tuple[int, int], Tensor]()
        self._live = list[int]()

    @property
    def all_lend(self) -> bool:
        return all(self._columns[LENT])

    @property
    def somebody_lends(self) -> bool:
        return any(self._columns[LENT])

    @property
    def some_are_new(self) -> bool:
        return any(said >> 8 & 1 for said in self._columns[LENT])

    def let_go(self) -> None:
        """Of what is no more."""
        if (live := list(self._columns[LIVE])) != self._live:
            self._live = live
            self._found = {key: found for key, found in self._found.items() if live[key[0]] >> key[1] & 1}

    def open(self, byte_count: int) -> bool:
        """Open what is new; whether all of it could be opened."""
        try:
            for rank, said in enumerate(self._columns[LENT]):
                if rank != self._rank and said >> 8 & 1:
                    self._found[rank, number_in(said)] = self._open_one(rank, said >> 16, byte_count)
        except PermissionError as error:
            tell_copied(
                f"a process may not open the memory of another ({error.strerror}); run all of a host as one user"
            )
            return False
        except (OSError, RuntimeError):  # somebody is gone, or has another meaning for the number
            return False
        return True

    def vectors(self, own: Tensor) -> list[Tensor]:
        """The bytes of all members' vectors, by rank; `own` are this one's."""
        said = self._columns[LENT]
        return [own if rank == self._rank else self._found[rank, number_in(said[rank])] for rank in range(len(said))]

    def _open_one(self, rank: int, fd: int, byte_count: int) -> Tensor:
        path = Path(f"/proc/{self._columns[PROCESS][rank]}/fd/{fd}")
        self._expect(rank, byte_count, path.stat())  # to open another one may do something
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._expect(rank, byte_count, os.fstat(opened))
            # Python's own would keep a descriptor for each.
            return torch.from_file(f"/proc/self/fd/{opened}", shared=True, size=byte_count, dtype=torch.uint8)
        finally:
            os.close(opened)

    def _expect(self, rank: int, byte_count: int, file: os.stat_result) -> None:
        """That this is the memory that the member means."""
        known = (self._columns[INODE][rank], self._columns[DEVICE][rank], byte_count)
        if (file.st_ino, file.st_dev, file.st_size) != known:
            raise OSError("this is another file")


def number_in(said: int) -> int:
    return (said & 0xFF) - 1
