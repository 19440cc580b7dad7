"""Scripts that begin again from snapshots of their own, in a job that keeps checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm.core import Trace
from tests.runtime.script.runs import Run, adapted, try_adapted


def kept(folder: Path, counted: str = "epoch", policy: str = "bsp") -> dict[str, Any]:
    """Settings of a job that goes on from the first two of its four epochs."""
    settings: dict[str, Any]
    settings = {"policy": policy, "checkpoint": str(folder / "kept"), "every": "0.001s", "epochs": 4, "stand_in": False}
    adapted(folder / "first", "resumed.py", "0", "0", "2", counted, **settings)
    assert list((folder / "kept").glob("checkpoint-*"))
    return settings


def test_a_snapshot_may_be_of_the_middle_of_an_epoch(tmp_path: Path) -> None:
    settings = kept(tmp_path)
    run = adapted(tmp_path / "then", "resumed.py", "1", "3", "4", "epoch", **settings)
    assert "each rank reads its own mini-batches" in run.stderr()


def test_a_loop_says_in_which_epoch_a_script_goes_on(tmp_path: Path) -> None:
    settings = kept(tmp_path, policy="switch:bsp@0.5,asp")
    run = adapted(tmp_path / "then", "resumed.py", "2", "0", "4", "epoch", **settings)
    assert "no loop over epochs" not in run.stderr()


def unnumbered(folder: Path, policy: str) -> Run:
    settings = kept(folder, "e", policy)
    return try_adapted(folder / "then", "resumed.py", "2", "0", "4", "e", **settings)


def test_a_loop_that_does_not_say_it_is_told(tmp_path: Path) -> None:
    run = unnumbered(tmp_path, "bsp")
    assert run.codes == [0, 0]
    assert "no loop over epochs says by a number where the script goes on" in run.stderr()
    assert "the job counts from its epoch 0 on" in run.stderr()


def test_a_policy_of_shares_needs_it(tmp_path: Path) -> None:
    run = unnumbered(tmp_path, "switch:bsp@0.5,asp")
    assert run.codes == [2, 2]
    assert "switch:bsp@0.5,asp counts shares of epochs, and no loop over epochs says by a number" in run.stderr()


HALF = "switch:bsp@0.5,asp"


def resumed(folder: Path, first: int, end: int, **settings: Any) -> Run:
    """A script goes on from its snapshot at the first of these epochs."""
    trace = str(folder / f"traces-{first}")
    settings |= {"policy": HALF, "trace": trace, "every": "0.001s", "stand_in": False}
    return adapted(folder / f"from-{first}", "resumed.py", str(first), "0", str(end), "epoch", **settings)


def switched_at(folder: Path, first: int) -> int:
    """Samples of the job before asp began, in the run that began with this epoch of the loop."""
    headers = [Trace.load(path).header for path in sorted((folder / f"traces-{first}").iterdir())]
    return next(each.cluster.processed_samples for each in headers if each.policy == "asp")


def test_shares_are_of_all_epochs_of_a_job_that_goes_on(tmp_path: Path) -> None:
    kept = {"checkpoint": str(tmp_path / "kept")}
    resumed(tmp_path, 0, 2, **kept)
    run = resumed(tmp_path, 2, 8, **kept)
    assert switched_at(tmp_path, 2) == 4 * 48
    assert f"{HALF} counts shares of 8 epochs\n" in run.stderr()


def test_shares_of_a_folder_without_checkpoints_are_of_the_epochs_left(tmp_path: Path) -> None:
    kept = {"checkpoint": str(tmp_path / "kept")}
    run = resumed(tmp_path, 2, 6, **kept)
    assert switched_at(tmp_path, 2) == 2 * 48
    assert "no checkpoint says with which epoch the job began: its epoch 0 is epoch 2 of the loop" in run.stderr()
    assert f"{HALF} counts shares of 4 epochs, from epoch 2 of the loop on\n" in run.stderr()
    run = resumed(tmp_path, 3, 6, **kept)  # its epoch 0 is the same as before
    assert switched_at(tmp_path, 3) == 2 * 48
    assert f"{HALF} counts shares of 4 epochs, from epoch 2 of the loop on\n" in run.stderr()


@pytest.mark.parametrize("planned", [{}, {"epochs": 6}])
def test_shares_without_a_checkpoint_are_of_the_epochs_left(tmp_path: Path, planned: dict[str, int]) -> None:
    run = resumed(tmp_path, 2, 6, **planned)
    epochs = planned.get("epochs", 4)
    assert switched_at(tmp_path, 2) == epochs // 2 * 48
    assert f"{HALF} counts shares of {epochs} epochs, from epoch 2 of the loop on\n" in run.stderr()
    assert "no checkpoint" not in run.stderr()
