"""Scripts that begin again from snapshots of their own, in a job that keeps checkpoints."""

from pathlib import Path
from typing import Any

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
