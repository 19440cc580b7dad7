"""Real jobs that are killed as a whole and go on from their checkpoints; every sample is a parameter of its own."""

import errno
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import control_client as steer
from tests.runtime.coordinates import await_samples, kill_everything, train, trouble
from tests.runtime.jobs import job
from tests.runtime.places import LIMIT_S

EPOCHS, SAMPLES, BATCH, COMPUTE_S = 3, 480, 4, 0.01


def settings(policy: str, folder: Path, **others: Any) -> dict[str, Any]:
    """Of a job that keeps checkpoints."""
    return {
        "name": f"kept-{uuid.uuid4().hex}",
        "policy": policy,
        "checkpoint": str(folder),
        "every": "0.05s",
        "epochs": EPOCHS,
        **others,
    }


def run(workers: int, policy: str, folder: Path, **others: Any) -> list[Tensor]:
    """A job to its end."""
    with job(train, workers, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings(policy, folder, **others)) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    return [outcome.value for outcome in outcomes]


def run_and_kill(workers: int, samples: int, policy: str, folder: Path, **others: Any) -> None:
    """A job that is killed when it has processed so many samples, and has two checkpoints."""
    with job(train, workers, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings(policy, folder, **others)) as running:
        while len([*folder.glob("checkpoint-*")]) < 2 or samples:
            assert await_samples(running, samples), "it has ended before"
            samples = 0
        kill_everything(running)


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:8", "selsync:0.05"])
def test_a_job_that_was_killed_goes_on_with_other_workers(policy: str, tmp_path: Path) -> None:
    run_and_kill(3, SAMPLES + SAMPLES // 2, policy, tmp_path)
    weights = run(2, policy, tmp_path)
    assert trouble(weights, [3, 2]) == ""
    made_first = (weights[0] - 1 / 3).abs() < 1e-3
    assert 0 < made_first.sum() < EPOCHS * SAMPLES, "it has gone on from the first job's state"


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:8"])
def test_a_checkpoint_that_is_asked_for_has_all_until_then(policy: str, tmp_path: Path) -> None:
    with job(train, 2, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings(policy, tmp_path, every="1h")) as running:
        assert await_samples(running, SAMPLES + SAMPLES // 2)
        steer.take_checkpoint(steer.at(running.settings.job), LIMIT_S)
        kill_everything(running)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000001"]
    weights = run(3, policy, tmp_path)
    assert trouble(weights, [2, 3]) == ""
    made_first = (weights[0] - 1 / 2).abs() < 1e-3
    assert made_first.sum() >= SAMPLES + SAMPLES // 2, "it has gone on from there"


def test_a_job_without_a_folder_takes_none(tmp_path: Path) -> None:
    with job(train, 1, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings("asp", tmp_path, checkpoint=None)) as running:
        assert await_samples(running, 1)
        with pytest.raises(UsageError, match="keeps no checkpoints; start it with --checkpoint DIR"):
            steer.take_checkpoint(steer.at(running.settings.job), LIMIT_S)
        kill_everything(running)


def newest(folder: Path) -> Path:
    """The newest checkpoint."""
    return max(folder.glob("checkpoint-*"))


@pytest.mark.parametrize("what", ["flip", "cut", "manifest"])
def test_a_checkpoint_that_is_changed_is_refused_and_the_one_before_is_taken(what: str, tmp_path: Path) -> None:
    run_and_kill(2, SAMPLES, "asp", tmp_path)
    path = newest(tmp_path) / ("manifest" if what == "manifest" else "model.safetensors")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data[:-1] if what == "cut" else data)
    assert trouble(run(2, "asp", tmp_path), [2]) == ""


def starve(rank: int, *arguments: Any) -> Tensor:
    """Train where no file can be kept, as on a full disk."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = fsync  # type: ignore[assignment]
    return train(rank, *arguments)


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    with job(starve, 2, 1, SAMPLES, BATCH, COMPUTE_S, **settings("bsp", tmp_path)) as running:
        outcomes = running.join()
    assert trouble([outcome.value for outcome in outcomes], [2]) == ""
    assert [path.name for path in tmp_path.iterdir() if "checkpoint" in path.name] == []


def test_other_data_than_the_checkpoint_s_is_refused(tmp_path: Path) -> None:
    run_and_kill(2, SAMPLES // 2, "bsp", tmp_path)
    with job(train, 2, EPOCHS, SAMPLES // 2, BATCH, COMPUTE_S, **settings("bsp", tmp_path)) as running:
        outcomes = running.ranks.join(60.0)
    for outcome in outcomes:
        assert "was made with another model: weight is (3, 480, 1)" in outcome.traceback.strip().split("\n")[-1]


def test_a_folder_is_of_one_job_at_a_time(tmp_path: Path) -> None:
    with job(train, 2, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings("asp", tmp_path)) as running:
        assert await_samples(running, 1)
        with job(train, 1, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings("asp", tmp_path)) as other:
            (outcome,) = other.ranks.join(60.0)
            assert "another job keeps its checkpoints in" in outcome.traceback.strip().split("\n")[-1]
        kill_everything(running)
