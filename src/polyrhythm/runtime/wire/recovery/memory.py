"""Memory that outlives the coordinator: what is written there is whole, however its writer ends.

It has two places. A record is written where the older one is, which is void until the new one is there. No file system
is touched: the memory is that of files without a name, which whoever starts coordinators keeps open.
"""

import os
from collections.abc import Sequence
from mmap import mmap
from struct import Struct
from typing import NamedTuple

HEAD = Struct("<QQQ")
"""Number of the record, 0 if it is void; bytes of the record, and of what comes with it."""

COUNT = Struct("<QQQ")
"""Samples of the job that were made at last, deaths of its coordinators, and 1 if nobody can follow the next one."""

RANK = Struct("<Q")
"""Behind the counts: a rank that nobody waits for."""


class Kept(NamedTuple):
    """What was written last: a record, and the numbers that came with it."""

    number: int
    record: bytes
    numbers: bytearray


class RecoveryMemory:
    """What one coordinator writes, and the next one reads.

    Args:
        descriptors: of three files in memory: the two places, and the counts.

    Example:
        >>> memory = RecoveryMemory.create()
        >>> memory.write(b"first")
        >>> memory.write(b"second", [memoryview(b"numbers")])
        >>> memory.read()
        Kept(number=2, record=b'second', numbers=bytearray(b'numbers'))
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = tuple(descriptors)
        *places, self._counts = self.descriptors
        self._places = tuple(places)
        _, self._deaths, self._last = self._counted()

    @classmethod
    def create(cls) -> "RecoveryMemory":
        return cls([os.memfd_create(f"polyrhythm-recovery-{part}") for part in range(3)])

    def close(self) -> None:
        """This process needs it no more; others may have it still."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def write(self, record: bytes, numbers: Sequence[memoryview] = ()) -> None:
        """Keep a record in place of the older of the two, which is void first."""
        heads = [self._head(place) for place in self._places]
        number = max(head[0] for head in heads) + 1
        place = self._places[heads[0][0] > heads[1][0]]
        os.pwrite(place, HEAD.pack(0, 0, 0), 0)
        end = HEAD.size
        for part in (memoryview(record), *numbers):
            end += write_all(place, part.cast("B"), end)
        os.pwrite(place, HEAD.pack(number, len(record), end - HEAD.size - len(record)), 0)

    def read(self) -> Kept | None:
        """The newest record; None if there is none."""
        place = max(self._places, key=self._head)
        number, length, others = self._head(place)
        if not number:
            return None
        return Kept(number, bytes(read_all(place, length, HEAD.size)), read_all(place, others, HEAD.size + length))

    def begin(self) -> None:
        """A process begins that starts coordinators; if there was one, it was killed together with its coordinator."""
        self._deaths += os.fstat(self._counts).st_size > 0
        self.count(self.samples)

    def count(self, samples: int) -> None:
        """So many samples of the job are made."""
        os.pwrite(self._counts, COUNT.pack(samples, self._deaths, self._last), 0)

    @property
    def made(self) -> memoryview:
        """The samples of the job that are made, as a word to be changed in place, which costs no call of the kernel."""
        self.count(self.samples)  # so that there is a word
        return memoryview(mmap(self._counts, COUNT.size)).cast("Q")

    @property
    def samples(self) -> int:
        """Samples of the job that the last coordinator knew of."""
        return self._counted()[0]

    @property
    def deaths(self) -> int:
        """How many coordinators have been killed."""
        return self._counted()[1]

    def count_death(self) -> int:
        """One more is gone; how many are."""
        _, self._deaths, self._last = self._counted()
        self._deaths += 1
        self.count(self.samples)
        return self._deaths

    def allow(self, followed: bool) -> None:
        """Whether another coordinator can go on with the job."""
        self._last = int(not followed)
        self.count(self.samples)

    @property
    def followed(self) -> bool:
        """What the last coordinator has said of that; at first it can."""
        return not self._counted()[2]

    def excuse(self, rank: int) -> None:
        """Nobody waits for this rank: it has ended before the job has begun."""
        if rank not in self.excused:
            os.pwrite(self._counts, RANK.pack(rank), COUNT.size + RANK.size * len(self.excused))

    @property
    def excused(self) -> tuple[int, ...]:
        """Ranks that nobody waits for."""
        data = os.pread(self._counts, os.fstat(self._counts).st_size, COUNT.size)
        return tuple(rank for (rank,) in RANK.iter_unpack(data[: len(data) // RANK.size * RANK.size]))

    def _counted(self) -> tuple[int, int, int]:
        samples, deaths, last = COUNT.unpack(os.pread(self._counts, COUNT.size, 0).ljust(COUNT.size, b"\0"))
        return samples, deaths, last

    def _head(self, place: int) -> tuple[int, int, int]:
        number, length, others = HEAD.unpack(os.pread(place, HEAD.size, 0).ljust(HEAD.size, b"\0"))
        return number, length, others


def write_all(place: int, data: memoryview, offset: int) -> int:
    """Bytes that were written, which are all: the kernel takes 2 GB at a time."""
    done = 0
    while done < len(data):
        done += os.pwrite(place, data[done:], offset + done)
    return done


def read_all(place: int, length: int, offset: int) -> bytearray:
    data = bytearray(length)
    done = 0
    while done < length:
        done += os.preadv(place, [memoryview(data)[done:]], offset + done)
    return data
