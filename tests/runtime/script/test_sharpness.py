"""Sharpness-aware steps, which change parameters by hand and take it back."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import adapted, plain
from tests.runtime.script.test_several import weights


@pytest.mark.parametrize("what", ["together", "apart"])
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, what: str) -> None:
    ours, theirs = adapted(tmp_path / "ours", "sharpness.py", what), plain(tmp_path / "theirs", "sharpness.py", what)
    for rank in ours.ranks:
        assert torch.equal(weights(ours, rank), weights(theirs, rank))


@pytest.mark.parametrize("policy", ["asp", "local:1"])
def test_a_single_worker_is_the_script_by_itself(tmp_path: Path, policy: str) -> None:
    ours = adapted(tmp_path / "ours", "sharpness.py", "alone", policy=policy, ranks=1)
    theirs = plain(tmp_path / "theirs", "sharpness.py", "alone", ranks=1)
    assert torch.allclose(weights(ours), weights(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:2"])
def test_ranks_end_with_one_model(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "sharpness.py", "alone", policy=policy)
    assert torch.equal(weights(run, 0), weights(run, 1))
