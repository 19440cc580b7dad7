"""Several optimizers in loops that do not ask for a mini-batch after the last one."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain

HOWS = ["within", "ahead"]


def weights(run: Run) -> list[str]:
    """Of each rank, at the end and as it has evaluated them."""
    return [(run.folder / f"weights.{rank}").read_text("utf-8") for rank in run.ranks]


@pytest.mark.parametrize("besides", ["evaluated", "dropped", "eager", "seldom dropped evaluated"])
@pytest.mark.parametrize("how", HOWS)
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, how: str, besides: str) -> None:
    theirs = plain(tmp_path / "theirs", "manual.py", how, *besides.split(), stand_in=False)
    ours = adapted(tmp_path / "ours", "manual.py", how, *besides.split(), stand_in=False)
    assert weights(ours) == weights(theirs)


@pytest.mark.parametrize("policy", ["asp", "local:8"])
@pytest.mark.parametrize("besides", ["nothing", "logged", "dropped", "seldom evaluated"])
@pytest.mark.parametrize("how", HOWS)
def test_ranks_end_with_one_model(tmp_path: Path, how: str, besides: str, policy: str) -> None:
    first, second = weights(adapted(tmp_path, "manual.py", how, *besides.split(), policy=policy, stand_in=False))
    assert first == second


@pytest.mark.parametrize("besides", ["evaluated", "seldom evaluated", "left"])
def test_a_single_worker_under_asp_is_the_script_by_itself(tmp_path: Path, besides: str) -> None:
    alone = plain(tmp_path / "alone", "manual.py", "alone", *besides.split(), ranks=1, stand_in=False)
    run = adapted(tmp_path / "run", "manual.py", "alone", *besides.split(), policy="asp", ranks=1, stand_in=False)
    (theirs,), (ours,) = weights(alone), weights(run)
    for mine, other in zip(ours.splitlines(), theirs.splitlines(), strict=True):
        assert torch.allclose(values(mine), values(other), rtol=1e-4, atol=1e-6)


def values(line: str) -> torch.Tensor:
    return torch.tensor([float.fromhex(word) for word in line.split()])
