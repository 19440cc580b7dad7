"""What the kernel knows of a rank's TCP connections, kept now and then: bytes, and for how long some were under way.

In a synchronous exchange everybody stands as long as the slowest link needs. Whose link that is shows in how long the
kernel waits for the other side to confirm what it has sent, connection by connection. Standard library only.
"""

import mmap
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from polyrhythm.errors import TraceError

MAGIC = b"polylink"
FORMAT = 1
HEADER = struct.Struct("<8sIII")
"""Magic, format, connections, looks written."""

NAME = struct.Struct("<48s48s")
LOOK = struct.Struct("<d")
ENTRY = struct.Struct("<dddd")
MOST_CONNECTIONS, MOST_LOOKS = 128, 128
"""With so many looks every second one is forgotten, and they come half as often."""

PERIOD_S = 0.25
CHEAP = 2000
"""Looks are so many times further apart than one takes."""

DESCRIPTORS = Path("/proc/self/fd")
TCP_INFO = struct.Struct("<120xQ20xI8xQQQ")
"""Of the kernel's tcp_info: bytes confirmed; least microseconds to and fro; bytes a second that it has seen delivered;
microseconds busy, and held up by the peer."""

SLOT = LOOK.size + MOST_CONNECTIONS * ENTRY.size
SIZE = HEADER.size + MOST_CONNECTIONS * NAME.size + MOST_LOOKS * SLOT


class LinkCount(NamedTuple):
    """Of one connection: what it did since it was made, and what the kernel takes it for now.

    Attributes:
        sent: bytes that arrived.
        busy_s: seconds in which some were under way and the peer had room for them.
        rate: bytes a second at which the last ones arrived that came as fast as they could.
        trip_s: shortest time to and fro, seconds.
    """

    sent: float
    busy_s: float
    rate: float
    trip_s: float


class LinkLooks(NamedTuple):
    """What one rank has kept.

    Attributes:
        connections: own and other end of each.
        times_s: of each look.
        counts: of each look, by connection; a connection that was not there yet has none.
    """

    connections: list[tuple[str, str]]
    times_s: list[float]
    counts: list[dict[tuple[str, str], LinkCount]]


class LinkWatcher:
    """Looks at the connections of this process when it is asked to, at most a few times a second.

    Args:
        path: file to keep the looks in.
    """

    def __init__(self, path: Path) -> None:
        self._period_s, self._next_s = PERIOD_S, 0.0
        self._numbers: dict[tuple[str, str], int] = {}
        self._looks = 0
        with open(path, "w+b") as file:
            file.truncate(SIZE)
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._say()

    def look(self, now_s: float) -> None:
        if now_s >= self._next_s:
            used_s = time.thread_time()
            self._look(now_s)
            self._next_s = now_s + max(self._period_s, CHEAP * (time.thread_time() - used_s))

    def _look(self, now_s: float) -> None:
        if self._looks == MOST_LOOKS:
            self._thin_out()
        at = slot(self._looks)
        self._map[at : at + SLOT] = bytes(SLOT)
        LOOK.pack_into(self._map, at, now_s)
        for ends, count in connections():
            number = self._number(ends)
            if number is not None:
                ENTRY.pack_into(self._map, at + LOOK.size + number * ENTRY.size, *count)
        self._looks += 1
        self._say()

    def _number(self, ends: tuple[str, str]) -> int | None:
        if ends not in self._numbers:
            if len(self._numbers) == MOST_CONNECTIONS:
                return None
            number = self._numbers[ends] = len(self._numbers)
            place = HEADER.size + number * NAME.size
            NAME.pack_into(self._map, place, *(end.encode()[:48] for end in ends))
        return self._numbers[ends]

    def _thin_out(self) -> None:
        for kept in range(MOST_LOOKS // 2):
            old, new = slot(2 * kept), slot(kept)
            self._map[new : new + SLOT] = self._map[old : old + SLOT]
        self._looks = MOST_LOOKS // 2
        self._period_s *= 2

    def _say(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, FORMAT, len(self._numbers), self._looks)


def slot(look: int) -> int:
    return HEADER.size + MOST_CONNECTIONS * NAME.size + look * SLOT


def connections() -> Iterator[tuple[tuple[str, str], LinkCount]]:
    """Each TCP connection of this process, by its ends."""
    try:
        descriptors = [int(entry.name) for entry in DESCRIPTORS.iterdir()]
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError, struct.error):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and (found := connection(descriptor)):
                yield found


def connection(descriptor: int) -> tuple[tuple[str, str], LinkCount] | None:
    """It is looked at through a second descriptor, which is closed at once: nothing of it changes."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
            return None
        ends = text(found.getsockname()), text(found.getpeername())
        raw = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sent, trip_us, rate, busy_us, limited_us = TCP_INFO.unpack_from(raw)
    return ends, LinkCount(sent, 1e-6 * max(0, busy_us - limited_us), rate, 1e-6 * trip_us)


def text(address: tuple[str, int]) -> str:
    """The same for both families.

    >>> text(("::ffff:10.0.0.1", 80, 0, 0))
    '10.0.0.1 80'
    """
    return f"{address[0].removeprefix('::ffff:')} {address[1]}"


def read_looks(path: Path) -> LinkLooks:
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    if len(data) < SIZE or not data.startswith(MAGIC):
        raise TraceError(f"{path} is no whole file of the watcher; copy all that polyrhythm doctor --keep has written")
    _, version, named, looks = HEADER.unpack_from(data)
    if version != FORMAT or named > MOST_CONNECTIONS or looks > MOST_LOOKS:
        raise TraceError(f"{path} is of another version or broken; watch the job again")
    places = [NAME.unpack_from(data, HEADER.size + number * NAME.size) for number in range(named)]
    ends = [(plain(own), plain(other)) for own, other in places]
    times_s = [LOOK.unpack_from(data, slot(look))[0] for look in range(looks)]
    counts = [entries(data, slot(look) + LOOK.size, ends) for look in range(looks)]
    return LinkLooks(ends, times_s, counts)


def entries(data: bytes, at: int, ends: list[tuple[str, str]]) -> dict[tuple[str, str], LinkCount]:
    found = {pair: LinkCount(*ENTRY.unpack_from(data, at + number * ENTRY.size)) for number, pair in enumerate(ends)}
    return {pair: count for pair, count in found.items() if count.sent or count.busy_s}


def plain(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
