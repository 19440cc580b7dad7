from pathlib import Path

import numpy as np
import pytest

from polyrhythm.doctor.readers.rings import read_rings
from polyrhythm.doctor.watch import ring
from polyrhythm.doctor.watch.ring import RingWriter
from polyrhythm.errors import TraceError
from tests.doctor.jobs import EXCHANGE_S, drawn

LOADING_S = 0.003


def written(folder: Path, own_s: np.ndarray, ranks: int | None = None) -> list[Path]:
    end_s = 1e9 + np.cumsum(own_s.max(axis=0) + EXCHANGE_S)
    for rank, own in enumerate(own_s):
        writer = RingWriter(folder / f"rank-{rank}.ring", rank, ranks or len(own_s), "a-host", "a-clock")
        writer.say_batch(16)
        for step in range(1, len(own)):
            arrival_s = end_s[step - 1] + own[step]
            times = (arrival_s, end_s[step], LOADING_S, 0.0, 0.0, 0.004, 0.006, 0.001, arrival_s - 0.006)
            writer.write(step, *(round(1e9 * part) for part in times))
    return sorted(folder.glob("*.ring"))


def test_what_the_watcher_kept_is_evidence(tmp_path: Path) -> None:
    own_s = drawn(3, 40)
    evidence = read_rings(written(tmp_path, own_s))
    assert evidence.own_s == pytest.approx(own_s[:, 2:], abs=1e-6)
    assert evidence.parts["data loading"] == pytest.approx(np.full((3, 38), LOADING_S))
    assert set(evidence.detail) == {"forward pass", "backward pass", "optimizer"}
    assert (evidence.batch_size, evidence.hosts, evidence.notes) == (16, ("a-host",) * 3, ())


def test_a_rank_that_left_no_ring_is_missed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the job has 4 ranks, but there is no trace of rank 3; add it"):
        read_rings(written(tmp_path, drawn(3, 10), ranks=4))


def test_ranks_that_were_not_seen_to_exchange_have_no_steps(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="2 ranks have joined a group, and no steps with an exchange were seen"):
        read_rings(written(tmp_path, drawn(2, 1)))


def test_steps_that_a_long_job_has_written_over_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "CAPACITY", 25)
    assert read_rings(written(tmp_path, drawn(2, 40))).notes == (
        "a rank keeps its last 25 steps; the 14 before them are gone",
    )
