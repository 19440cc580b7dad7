"""What a coordinator cannot write down is said once, and nothing else comes of it."""

import logging
from pathlib import Path

import pytest

from polyrhythm.core import Cluster, Joined, Proceed, Report, Sync
from polyrhythm.policies import ASP
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.monitor import JobMonitor
from polyrhythm.runtime.coordinator.recorder import JobRecorder, TraceFiles
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.runtime.fake_job import FakeJob

CLUSTER = Cluster(1, 8, 800)
EVENTS = 1000
"""More than what a file keeps before it writes."""


def make_job() -> Job:
    return FakeJob("asp", 1, 8, 1, 1, 0).coordinator.job


def live(recorder: JobRecorder, phases: int = 2) -> None:
    for phase in range(1, phases + 1):
        recorder.begin_phase(phase, ASP(), CLUSTER, 100)
        recorder.backlog.append((Joined((0,), 0.0), (Proceed((0,)),)))
        for clock in range(1, EVENTS):
            recorder.backlog.append((Report(0, clock, float(clock), 8, 1.0), (Sync((0,)), Proceed((0,)))))
    recorder.close({})


MONITOR = JobMonitor(lambda: 0.0)


def full(folder: Path, job: str, phase: int) -> None:
    """A trace of this phase meets a full disk."""
    folder.mkdir(exist_ok=True)
    (folder / f"{job}-phase-{phase}.jsonl").symlink_to("/dev/full")


@pytest.mark.parametrize("phase", [1, 2])
def test_a_full_disk_ends_the_trace_only(phase: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full(tmp_path, "j", phase)
    with caplog.at_level(logging.WARNING):
        live(JobRecorder(JobConfig(job="j", trace=str(tmp_path)), make_job(), MONITOR), phases=3)
    said = f"the trace in {tmp_path} cannot be written: No space left on device; the job goes on without it"
    assert [record.message for record in caplog.records] == [said]
    assert (tmp_path / "j-phase-1.jsonl").exists()
    assert not (tmp_path / "j-phase-3.jsonl").exists()


def test_what_is_kept_to_the_end_meets_a_full_disk(tmp_path: Path) -> None:
    full(tmp_path, "j", 1)
    said: list[str] = []
    traces = TraceFiles(str(tmp_path), "j", said.append)
    traces.begin_phase(1, ASP(), CLUSTER)
    traces.close()
    traces.write(Joined((0,), 0.0), ())
    assert len(said) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        live(JobRecorder(JobConfig(job="j", trace=str(tmp_path / "file")), make_job(), MONITOR))
    assert len(caplog.records) == 1
    assert "cannot be written: File exists" in caplog.text


def test_figures_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        live(JobRecorder(JobConfig(job="j", figures="/dev/full"), make_job(), MONITOR))
    assert "what was measured cannot be written: " in caplog.text
    assert "No space left on device" in caplog.text


def test_figures_are_there_as_a_whole_or_as_they_were(tmp_path: Path) -> None:
    """Who has the old file open, here by a second name, never sees half of the new one in it."""
    figures, opened = tmp_path / "figures.json", tmp_path / "opened.json"
    figures.write_text("before")
    opened.hardlink_to(figures)
    live(JobRecorder(JobConfig(job="j", figures=str(figures)), make_job(), MONITOR))
    assert figures.read_text().endswith("}")
    assert opened.read_text() == "before"


@pytest.mark.parametrize(("written", "left"), [(b'{"a":1}\n{"b":2}\n{"c', b'{"a":1}\n{"b":2}\n'), (b'{"a', None)])
def test_half_a_line_of_a_coordinator_that_was_killed_is_cut_off(
    written: bytes, left: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "j-phase-3.jsonl"
    path.write_bytes(written)
    TraceFiles(str(tmp_path), "j", print).mend(3)
    assert (path.read_bytes() if path.exists() else None) == left


def traced(folder: Path, phases: int, trainings: int = 0, killed_in: int = 0) -> None:
    config = JobConfig(job="j", trace=str(folder))
    recorder = JobRecorder(config, make_job(), MONITOR, trainings)
    if killed_in:
        recorder.mend(killed_in)
    for phase in range(max(killed_in, 1), phases + 1):
        recorder.begin_phase(phase, ASP(), CLUSTER, 100)
    recorder.close({})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_trace_of_an_earlier_run_is_kept_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    traced(tmp_path, phases=2)
    traced(tmp_path, phases=1, trainings=1)
    first = {name: (tmp_path / name).read_text() for name in names(tmp_path)}
    assert [*first] == ["j-phase-1.jsonl", "j-phase-2.jsonl", "j-training-2-phase-1.jsonl"]
    for other in ("k-phase-1.jsonl", "jj-phase-1.jsonl", "j-phase-1.json", "j-other-phase-1.jsonl"):
        (tmp_path / other).touch()
    assert not caplog.records
    for number in (1, 2):
        with caplog.at_level(logging.WARNING):
            traced(tmp_path, phases=1)
        said = f"traces of an earlier run of job j were moved to {tmp_path}/j-earlier-{number}"
        assert caplog.records[-1].message == said
    assert len(caplog.records) == 2
    assert {name: (tmp_path / "j-earlier-1" / name).read_text() for name in names(tmp_path / "j-earlier-1")} == first
    assert names(tmp_path / "j-earlier-2") == ["j-phase-1.jsonl"]
    others = ["j-other-phase-1.jsonl", "j-phase-1.json", "j-phase-1.jsonl", "jj-phase-1.jsonl", "k-phase-1.jsonl"]
    assert names(tmp_path) == sorted([*others, "j-earlier-1", "j-earlier-2"])


def test_a_coordinator_that_goes_on_keeps_the_traces_of_the_one_before_it(tmp_path: Path) -> None:
    traced(tmp_path, phases=2)
    traced(tmp_path, phases=3, killed_in=3)
    traced(tmp_path, phases=4, killed_in=4)
    assert names(tmp_path) == [f"j-phase-{number}.jsonl" for number in range(1, 5)]
