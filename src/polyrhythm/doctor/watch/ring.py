"""The file in which a watched rank keeps its last steps: a header and a ring of records of one size.

Standard library only: it is written inside a process of somebody else.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from polyrhythm.errors import TraceError

MAGIC = b"polyring"
FORMAT = 2
HEADER = struct.Struct("<8sIIIIQ64s64s")
"""Magic, format, rank, ranks, samples of a mini-batch, records written, host, clock."""

RECORD = struct.Struct("<10q")
COUNT = struct.Struct("<Q")
NANO = 1e-9
CAPACITY = 20_000
"""Steps that are kept; 1.6 MB a rank."""

COUNT_AT = 24
"""Where in the header the number of records stands."""

CLOCK_AT = HEADER.size - 64
"""Where in the header the clock stands."""


class RingRecord(NamedTuple):
    """One step in seconds; times since the rank's clock began, durations since the exchange before."""

    step: int
    arrival_s: float
    end_s: float
    loading_s: float
    pause_s: float
    other_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    began_s: float


class RingHeader(NamedTuple):
    rank: int
    ranks: int
    batch: int
    records: int
    host: str
    clock: str


class RingWriter:
    """Keeps the last steps of this rank."""

    def __init__(self, path: Path, rank: int, ranks: int, host: str, clock: str) -> None:
        size = HEADER.size + CAPACITY * RECORD.size
        with open(path, "w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0
        HEADER.pack_into(self._map, 0, MAGIC, FORMAT, rank, ranks, 0, 0, host.encode()[:64], clock.encode()[:64])

    def write(self, step: int, *nanoseconds: int) -> None:
        """The fields of a `RingRecord`; making one, or seconds, costs more than writing it."""
        RECORD.pack_into(self._map, HEADER.size + self._count % CAPACITY * RECORD.size, step, *nanoseconds)
        self._count += 1
        COUNT.pack_into(self._map, COUNT_AT, self._count)

    def say_clock(self, clock: str) -> None:
        struct.pack_into("<64s", self._map, CLOCK_AT, clock.encode()[:64])

    def say_batch(self, samples: int) -> None:
        struct.pack_into("<I", self._map, COUNT_AT - 4, samples)


def read_ring(path: Path) -> tuple[RingHeader, list[RingRecord]]:
    try:
        with open(path, "rb") as file:
            data = file.read(HEADER.size + CAPACITY * RECORD.size)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise TraceError(f"{path} is no file of the watcher; give the folder that polyrhythm doctor --keep has written")
    _, version, rank, ranks, batch, records, host, clock = HEADER.unpack_from(data)
    if version != FORMAT:
        raise TraceError(f"{path} is of format {version}, and this version reads {FORMAT}; watch the job again")
    kept = min(records, CAPACITY)
    if len(data) < HEADER.size + kept * RECORD.size:
        raise TraceError(f"{path} has {len(data):,} bytes and lacks the end of its {kept} steps; copy the whole file")
    first = records % CAPACITY if records > CAPACITY else 0
    order = [(first + i) % CAPACITY for i in range(kept)]
    found = [in_seconds(*RECORD.unpack_from(data, HEADER.size + place * RECORD.size)) for place in order]
    header = RingHeader(rank, ranks, batch, records, text(host), text(clock))
    return header, found


def in_seconds(step: int, *nanoseconds: int) -> RingRecord:
    return RingRecord(step, *(NANO * part for part in nanoseconds))


def text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
