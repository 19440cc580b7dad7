"""Unmodified scripts of which one process is killed and started again."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import SCRIPTS

LIMIT_S, SAMPLES, EPOCHS = 120.0, 64, 4


def run(
    folder: Path, *arguments: str, policy: str = "asp", script: str = "restarted.py"
) -> "subprocess.CompletedProcess[str]":
    """Two workers, of which the first is killed once by the script of these tests."""
    flags = ("--nproc-per-node", "2", "--max-restarts", "1", "--policy", policy)
    return subprocess.run(
        [sys.executable, "-m", "polyrhythm", "run", *flags, str(SCRIPTS / script), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def keep_snapshot(folder: Path, epochs: int) -> None:
    """Of a job before this one."""
    weight = torch.full((1, SAMPLES), -float(epochs))
    torch.save({"model": {"weight": weight}, "epochs": epochs}, folder / "snapshot.pt")


def epochs_of(folder: Path, rank: int) -> Sequence[tuple[int, int, float]]:
    """Of each epoch that a rank has ended: after how many restarts, its number, and how often a sample was made."""
    lines = (folder / f"epochs.{rank}").read_text(encoding="utf-8").splitlines()
    return [(int(restarts), int(number), float(made)) for restarts, number, made in map(str.split, lines)]


def check_last(folder: Path) -> None:
    """The snapshot says how many epochs it has, and has them."""
    snapshot = torch.load(folder / "snapshot.pt")
    assert snapshot["epochs"] == EPOCHS
    assert -snapshot["model"]["weight"].max() == EPOCHS


def test_its_loop_says_in_which_epoch_it_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, "epoch", "load")
    assert done.returncode == 0, done.stderr
    check_last(tmp_path)
    assert [number for restarts, number, _ in epochs_of(tmp_path, 0) if restarts] == [1, 2, 3]
    assert "other arguments" not in done.stderr


def test_the_job_may_have_begun_with_a_later_one(tmp_path: Path) -> None:
    keep_snapshot(tmp_path, 1)
    done = run(tmp_path, "epoch", "load")
    assert done.returncode == 0, done.stderr
    check_last(tmp_path)
    assert [number for restarts, number, _ in epochs_of(tmp_path, 0) if restarts] == [2, 3]


def lines_with(done: "subprocess.CompletedProcess[str]", text: str) -> list[str]:
    return [line for line in done.stderr.splitlines() if text in line]


def test_it_cannot_begin_before_the_job(tmp_path: Path) -> None:
    keep_snapshot(tmp_path, 1)
    done = run(tmp_path, "epoch", "lose")
    said = "its loop begins with epoch 0, and that of the job with epoch 1; give it the job's snapshot"
    assert len(lines_with(done, said)) == 1, done.stderr
    assert [number for _, number, _ in epochs_of(tmp_path, 1)] == [1, 2, 3]


def test_a_loop_that_does_not_say_it_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "e", "load")
    said = "this process comes to a job that is under way and has loaded parameters, but no loop over epochs says by"
    assert len(lines_with(done, said)) == 1, done.stderr
    assert len(lines_with(done, "a worker that is started again (--max-restarts) will be refused")) == 1, done.stderr
    assert [number for _, number, _ in epochs_of(tmp_path, 1)] == [0, 1, 2, 3]
    assert "Traceback" not in done.stderr


def test_a_loop_that_does_not_say_it_begins_anew_if_nothing_was_loaded(tmp_path: Path) -> None:
    done = run(tmp_path, "e", "skip")
    assert done.returncode == 0, done.stderr
    assert [number for restarts, number, _ in epochs_of(tmp_path, 0) if restarts] == [0, 1, 2, 3]
    check_last(tmp_path)


@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_what_it_saves_after_epochs_that_are_over(tmp_path: Path, policy: str) -> None:
    """The servers' parameters; where the workers have them, a line says that it has them not."""
    done = run(tmp_path, "epoch", "skip", policy=policy)
    assert done.returncode == 0, done.stderr
    again = {number: made for restarts, number, made in epochs_of(tmp_path, 0) if restarts}
    assert [*again] == [0, 1, 2, 3]
    told = len(lines_with(done, "rank 0 passes"))
    assert (again[0] >= 1, told) == ((True, 0) if policy == "asp" else (False, 1))


def test_it_is_said_that_a_scheduler_by_value_has_none_of_the_epochs_that_are_over(tmp_path: Path) -> None:
    done = run(tmp_path, "alone", "plateau", script="schedule.py")
    assert done.returncode == 0, done.stderr
    said = "ReduceLROnPlateau.step follows a value, which a worker that is started again (--max-restarts) does not have"
    assert len(lines_with(done, said)) == 1, done.stderr
    assert not lines_with(run(tmp_path, "alone", "cycle", script="schedule.py"), "--max-restarts")
