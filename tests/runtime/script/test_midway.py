"""Snapshots of a script's own in the middle of an epoch."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain


def kept(run: Run) -> list[torch.Tensor]:
    return [torch.cat(states) for states in torch.load(run.folder / "kept.0")]


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp:2"])
def test_they_have_the_optimizer_of_that_step(tmp_path: Path, policy: str) -> None:
    theirs = kept(plain(tmp_path / "theirs", "midway.py", ranks=1, stand_in=False))
    ours = kept(adapted(tmp_path / "ours", "midway.py", policy=policy, ranks=1, stand_in=False))
    assert len(ours) == 4
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("data", ["dealt", "own"])
def test_within_a_step_they_have_an_older_one(tmp_path: Path, data: str) -> None:
    run = adapted(tmp_path, "midway.py", "early", data, policy="asp", stand_in=False)
    assert ("each rank reads its own mini-batches" in run.stderr()) == (data == "own")
    assert run.stderr().count("optimizer.state_dict() between a mini-batch and its step has an older state") == 1


def test_those_of_several_workers_have_one_of_a_later_moment(tmp_path: Path) -> None:
    ours = kept(adapted(tmp_path, "midway.py", policy="asp", stand_in=False))
    assert len({tuple(states[5:].tolist()) for states in ours}) == len(ours), "none twice"
