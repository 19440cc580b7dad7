"""Memory that outlives the coordinator: what is written there is whole, however its writer ends.

It has two places for each part: a record, and what each further server of parameters keeps with it. A part is written
where the older one is, which is void until the new one is there; a record counts when all its parts are there. No file
system is touched: the memory is that of files without a name, which whoever starts coordinators keeps open.
"""

import os
from collections.abc import Iterable, Sequence
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

AVAILABLE: Final = hasattr(os, "memfd_create")
"""Whether this system has anonymous shared memory; elsewhere everything travels over the socket."""

HEAD = Struct("<QQQQ")
"""Number of the record, 0 if it is void; how many further parts it has; bytes of the record, and of what comes with
it.
"""

COUNT = Struct("<QQQ")
"""Samples of the job that were made at last, deaths of its coordinators, and trainings that are over."""

RANK = Struct("<Q")
"""Behind the counts: a rank that nobody waits for."""


class Kept(NamedTuple):
    """What was written last: a record, and the numbers that came with it."""

    number: int
    record: bytes
    numbers: bytearray


class Head(NamedTuple):
    """What a place holds; see `HEAD`."""

    number: int
    parts: int
    record: int
    numbers: int


class RecoveryMemory:
    """What one coordinator writes, and the next one reads.

    Args:
        descriptors: of files in memory: two places for each part, and the counts.

    Example:
        >>> memory = RecoveryMemory.create()
        >>> memory.write(b"first"), memory.write(b"second", [memoryview(b"numbers")])
        (1, 2)
        >>> memory.read()
        Kept(number=2, record=b'second', numbers=bytearray(b'numbers'))
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = tuple(descriptors)
        *places, self._counts = self.descriptors
        self._parts = tuple(zip(places[::2], places[1::2], strict=True))
        self._deaths = self.deaths

    @classmethod
    def create(cls, parts: int = 1) -> "RecoveryMemory":
        """New memory, for a record and so many servers of parameters, the first of which writes with the record."""
        return cls([os.memfd_create(f"polyrhythm-recovery-{number}") for number in range(2 * parts + 1)])

    def close(self) -> None:
        """This process needs it no more; others may have it still."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def write(self, record: bytes, numbers: Sequence[memoryview] = (), parts: int = 0) -> int:
        """Keep a record; its number. It counts once so many further parts are written under this number."""
        number = max(head.number for part in range(len(self._parts)) for head in self._heads(part)) + 1
        self._write(0, number, parts, record, numbers)
        return number

    def write_part(self, part: int, number: int, record: bytes, numbers: Sequence[memoryview] = ()) -> None:
        """A further part of the record of this number."""
        self._write(part, number, 0, record, numbers)

    def read(self) -> Kept | None:
        """The newest record all of whose parts are there; None if there is none."""
        number = self._newest()
        return self.read_part(0, number) if number else None

    def read_part(self, part: int, number: int) -> Kept:
        """A part of a record that is there."""
        places = zip(self._parts[part], self._heads(part), strict=True)
        place, head = next((place, head) for place, head in places if head.number == number)
        record = bytes(read_all(place, head.record, HEAD.size))
        return Kept(number, record, read_all(place, head.numbers, HEAD.size + head.record))

    def _write(self, part: int, number: int, parts: int, record: bytes, numbers: Sequence[memoryview]) -> None:
        newest, heads = self._newest(), self._heads(part)
        older = min(range(2), key=lambda place: (heads[place].number == newest, heads[place].number))
        place = self._parts[part][older]
        os.pwrite(place, HEAD.pack(0, 0, 0, 0), 0)
        end = HEAD.size
        for data in (memoryview(record), *numbers):
            end += write_all(place, data.cast("B"), end)
        os.pwrite(place, HEAD.pack(number, parts, len(record), end - HEAD.size - len(record)), 0)

    def _newest(self) -> int:
        """Number of the newest record all of whose parts are there; 0 if there is none."""
        there = [{head.number for head in self._heads(part)} for part in range(len(self._parts))]
        whole = (
            head.number
            for head in self._heads(0)
            if all(head.number in numbers for numbers in there[1 : 1 + head.parts])
        )
        return max(whole, default=0)

    def _heads(self, part: int) -> tuple[Head, Head]:
        one, other = (
            Head(*HEAD.unpack(os.pread(place, HEAD.size, 0).ljust(HEAD.size, b"\0"))) for place in self._parts[part]
        )
        return one, other

    def begin(self) -> None:
        """A process begins that starts coordinators; if there was one, it was killed together with its coordinator."""
        self._deaths += os.fstat(self._counts).st_size > 0
        self.count(self.samples)

    def count(self, samples: int) -> None:
        """So many samples of the job are made."""
        os.pwrite(self._counts, COUNT.pack(samples, self._deaths, self.trainings), 0)

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

    @property
    def trainings(self) -> int:
        """How many trainings of the job's scripts are over."""
        return self._counted()[2]

    def begin_again(self, excused: Iterable[int]) -> None:
        """A training is over, and another begins, in which nobody waits for these ranks."""
        for place in self.descriptors[:-1]:
            os.pwrite(place, HEAD.pack(0, 0, 0, 0), 0)
        os.ftruncate(self._counts, COUNT.size)
        os.pwrite(self._counts, COUNT.pack(0, self.deaths, self.trainings + 1), 0)
        for rank in excused:
            self.excuse(rank)

    def take_over(self, samples: int, deaths: int) -> None:
        """A coordinator on another host is lost, which has counted so many samples and deaths before; see `begin`."""
        self._deaths = deaths
        self.count(samples)

    @property
    def begun(self) -> bool:
        """Whether a coordinator was started with this memory."""
        return os.fstat(self._counts).st_size > 0

    def count_death(self) -> int:
        """One more is gone; how many are."""
        self._deaths = self.deaths + 1
        self.count(self.samples)
        return self._deaths

    def excuse(self, rank: int) -> None:
        """Nobody waits for this rank: it has ended before the job has begun."""
        if rank not in self.excused:
            os.pwrite(self._counts, RANK.pack(rank), COUNT.size + RANK.size * len(self.excused))

    @property
    def excused(self) -> tuple[int, ...]:
        """Ranks that nobody waits for."""
        data = os.pread(self._counts, os.fstat(self._counts).st_size, COUNT.size)
        return tuple(rank for (rank,) in RANK.iter_unpack(data[: len(data) // RANK.size * RANK.size]))

    def _counted(self) -> tuple[int, ...]:
        return COUNT.unpack(os.pread(self._counts, COUNT.size, 0).ljust(COUNT.size, b"\0"))


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
