from pathlib import Path

import pytest

from polyrhythm.doctor.watch import ring
from polyrhythm.doctor.watch.ring import RingRecord, RingWriter, read_ring
from polyrhythm.errors import TraceError


def nanoseconds(step: int) -> list[int]:
    return [1_000_000_000 * step + 100_000_000 * i for i in range(9)]


def record(step: int) -> RingRecord:
    return RingRecord(step, *(1e-9 * part for part in nanoseconds(step)))


def written(folder: Path, steps: int) -> Path:
    path = folder / "rank-00001.ring"
    writer = RingWriter(path, 1, 4, "a-host", "a-clock")
    writer.say_batch(32)
    for step in range(steps):
        writer.write(step, *nanoseconds(step))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    header, records = read_ring(written(tmp_path, 5))
    assert header == (1, 4, 32, 5, "a-host", "a-clock")
    assert records == [record(step) for step in range(5)]


def test_a_full_ring_keeps_the_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "CAPACITY", 4)
    header, records = read_ring(written(tmp_path, 10))
    assert header.records == 10
    assert [one.step for one in records] == [6, 7, 8, 9]


def test_a_ring_that_is_cut_off_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    path.write_bytes(path.read_bytes()[: ring.HEADER.size + 3 * ring.RECORD.size])
    with pytest.raises(TraceError, match="lacks the end of its 5 steps"):
        read_ring(path)


def test_a_ring_of_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    raw = bytearray(path.read_bytes())
    raw[8] = 99
    path.write_bytes(raw)
    with pytest.raises(TraceError, match="is of format 99, and this version reads 2"):
        read_ring(path)
