"""Scripts that train several times, as for each fold of their data: each training is a job of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.script.runs import Run, adapted, plain, try_adapted

KEPT = [[index for index in range(60) if index % 3 != fold] for fold in range(3) for _ in range(2)]
"""Samples of each epoch."""


def weights(run: Run, rank: int = 0) -> str:
    return (run.folder / f"weights.{rank}").read_text("utf-8")


def test_under_bsp_each_fold_is_what_torchrun_makes_of_it(tmp_path: Path) -> None:
    ours = adapted(tmp_path / "ours", "folds.py", "ranks", max_coordinator_restarts=1)
    theirs = plain(tmp_path / "theirs", "folds.py", "ranks")
    assert weights(ours) == weights(ours, 1) == weights(theirs)
    assert ours.seen == KEPT


@pytest.mark.parametrize("how", ["ranks", "drawn"])
def test_under_asp_each_fold_has_a_job(tmp_path: Path, how: str) -> None:
    run = adapted(tmp_path, "folds.py", how, policy="asp", max_coordinator_restarts=1)
    assert "training number 3 begins, as a job of its own" in run.stderr()
    if how == "ranks":
        assert weights(run) == weights(run, 1)
        assert run.seen == KEPT


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({}, "--max-coordinator-restarts 0"),
        ({"max_coordinator_restarts": 1, "checkpoint": "kept"}, "--checkpoint kept"),
    ],
)
def test_a_job_without_a_follower_or_with_checkpoints_is_for_one_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = try_adapted(tmp_path, "folds.py", "alone", ranks=1, **given)
    assert run.codes == [2]
    assert f"folds.py:38: the script begins another training, and {flag} is for" in run.stderr()


@pytest.mark.parametrize(("what", "policy"), [("group", "bsp"), ("unfreeze", "asp"), ("load", "asp")])
def test_what_is_changed_between_epochs_begins_another_training(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "changes.py", what, policy=policy, max_coordinator_restarts=1)
    assert weights(run) == weights(run, 1)
    assert ({*weights(run).split()} == {"2.0"}) == (what == "load")


def test_parameters_that_are_loaded_within_the_loop_are_refused_where_they_would_be_lost(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "changes.py", "inside", policy="asp", ranks=1)
    assert run.codes == [2]
    assert "the script loads parameters within its loop, where the job's are on servers" in run.stderr()
    adapted(tmp_path, "changes.py", "inside", ranks=1)
