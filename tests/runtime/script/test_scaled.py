"""A script in the shape of a language model's trainer, with automatic mixed precision."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain
from tests.runtime.script.test_kinds import weights
from tests.runtime.script.test_skipped import made_by

EPOCHS = 2


def saved(run: Run) -> dict[str, Any]:
    made: dict[str, Any] = torch.load(run.folder / "snapshot.pt")
    return made


def test_bsp_is_what_torchrun_does(tmp_path: Path) -> None:
    ours, theirs = adapted(tmp_path / "ours", "scaled.py", str(EPOCHS)), plain(tmp_path / "theirs", "scaled.py", "2")
    assert [ours.epochs_of(rank) for rank in ours.ranks] == [theirs.epochs_of(rank) for rank in theirs.ranks]
    assert ours.stdout(0) == theirs.stdout(0)
    a, b = saved(ours), saved(theirs)
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in b["model"])
    for key, state in b["optimizer"]["state"].items():
        assert all(torch.equal(a["optimizer"]["state"][key][name], state[name]) for name in state)


def test_asynchronous_workers_see_every_sample_once_and_save_what_the_servers_have(tmp_path: Path) -> None:
    run = adapted(tmp_path, "scaled.py", str(EPOCHS), policy="asp")
    first = run.seen[0]
    assert len(first) == len(set(first)) == 96
    assert run.seen == [first] * EPOCHS
    steps = {state["step"].item() for state in saved(run)["optimizer"]["state"].values()}
    assert steps == {1 + EPOCHS * 96 // 8 - 2}, "the warm-up step of two, and one for each push"


@pytest.mark.parametrize("compress", ["none", "bf16"])
def test_infinities_of_one_worker_are_those_of_all(tmp_path: Path, compress: str) -> None:
    run = adapted(tmp_path, "infinite.py", stand_in=False, compress=compress)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert weights(run).isfinite().all()
    assert weights(run)[-1] == 1024.0 / 4, "the scale, halved once an epoch"


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:3"])
def test_so_are_those_in_data_of_its_own(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "infinite.py", "drawn", policy=policy, stand_in=False)
    assert all(weights(run, rank).isfinite().all() for rank in run.ranks)
    if policy == "bsp":
        assert torch.equal(weights(run, 0), weights(run, 1))
        assert weights(run)[-1] == 1024.0 / 4


@pytest.mark.parametrize("mode", ["train", "evaluation"])
@pytest.mark.parametrize("data", ["dealt", "own"])
def test_the_first_steps_may_be_left_out(tmp_path: Path, data: str, mode: str) -> None:
    """They were taken for parts of one step, and the script was refused."""
    command = "overflow.py", data, mode
    ours, theirs = adapted(tmp_path / "ours", *command), plain(tmp_path / "theirs", *command)
    for rank in ours.ranks:
        assert torch.equal(weights(ours, rank), weights(theirs, rank))
    assert weights(ours)[-1] == 1024.0 / 4


@pytest.mark.parametrize("policy", ["asp", "local:3"])
def test_so_they_may_under_other_policies(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "overflow.py", "dealt", "train", policy=policy)
    assert all(weights(run, rank).isfinite().all() for rank in run.ranks)


@pytest.mark.parametrize("before", ["asp", "local:4"])
@pytest.mark.parametrize("model", ["wrapped", "bare"])
def test_scalers_that_came_apart_agree_before_scaled_gradients_are_exchanged(
    tmp_path: Path, before: str, model: str
) -> None:
    """The job ended, as each divided the sum by a scale of its own."""
    first, second = made_by(adapted(tmp_path, "rescaled.py", model, policy=f"switch:({before})@0.5,bsp"))
    assert first["made"] == second["made"]
    assert first["scale"] == second["scale"] == 512.0
