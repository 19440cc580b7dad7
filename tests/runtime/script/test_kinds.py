"""Parameters of other types than float32, and optimizers whose state servers cannot hold."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain, switched, try_adapted


def weights(run: Run, rank: int = 0) -> torch.Tensor:
    words = (run.folder / f"weights.{rank}").read_text("utf-8").split()
    return torch.tensor([float(word) for word in words], dtype=torch.float64)


@pytest.mark.parametrize("what", ["bf16", "mixed", "sparse", "Adafactor", "late", "evaluation mode", "clipped"])
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, what: str) -> None:
    ours, theirs = adapted(tmp_path / "ours", "kinds.py", what), plain(tmp_path / "theirs", "kinds.py", what)
    for rank in ours.ranks:
        assert torch.equal(weights(ours, rank), weights(theirs, rank))


@pytest.mark.parametrize("script", ["beside.py", "within.py", "pseudo.py"])
def test_a_script_of_another_kind_is_what_torchrun_makes_of_it(tmp_path: Path, script: str) -> None:
    """Evaluation mode beside training; steps within the wrapper's forward; labels from evaluation within the loop."""
    ours, theirs = adapted(tmp_path / "ours", script), plain(tmp_path / "theirs", script)
    for rank in ours.ranks:
        assert torch.equal(weights(ours, rank), weights(theirs, rank))


@pytest.mark.parametrize("policy", ["local:4", "selsync:0.3", "asp"])
def test_steps_within_the_forward_follow_other_policies(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "within.py", policy=policy, stand_in=False)
    assert torch.equal(weights(run, 0), weights(run, 1))


@pytest.mark.parametrize("what", ["double", "own", "sparse adam"])
def test_replicas_average_what_there_is(tmp_path: Path, what: str) -> None:
    run = adapted(tmp_path, "kinds.py", what, policy="local:4")
    assert torch.equal(weights(run, 0), weights(run, 1))
    if what == "double":
        assert not torch.equal(weights(run), weights(run).float().double())


@pytest.mark.parametrize(("what", "tolerance"), [("mixed", 2e-2), ("sparse", 1e-6)])
def test_servers_step_in_float32(tmp_path: Path, what: str, tolerance: float) -> None:
    ours = adapted(tmp_path / "ours", "kinds.py", what, policy="asp", ranks=1)
    theirs = plain(tmp_path / "theirs", "kinds.py", what, ranks=1)
    assert torch.allclose(weights(ours), weights(theirs), atol=tolerance)


def test_what_servers_cannot_hold_is_refused_under_policies_that_need_them(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "kinds.py", "Adafactor", policy="asp", ranks=1)
    assert run.codes == [2]
    reason = "the optimizer Adafactor keeps row_var in another shape than its parameter"
    assert f"policy asp runs on parameter servers, but {reason}" in run.stderr().splitlines()[-1]


def test_a_live_switch_carries_any_state_on(tmp_path: Path) -> None:
    run = switched(tmp_path, "kinds.py", "own", switches={6: "local:2", 16: "bsp"})
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_a_script_for_one_process_has_them_too(tmp_path: Path) -> None:
    run = adapted(tmp_path, "kinds.py", "sparse", "alone")
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_an_optimizer_that_computes_gradients_by_itself_is_refused(tmp_path: Path) -> None:
    assert try_adapted(tmp_path, "kinds.py", "LBFGS", ranks=1).codes == [2]


@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_weights_may_be_clipped_after_a_step(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "clipped.py", policy=policy, stand_in=False)
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_clipped_weights_are_refused_where_servers_make_the_steps(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "clipped.py", policy="asp", ranks=1, stand_in=False)
    assert run.codes == [2]
    assert "clipped.py:18: policy asp runs on parameter servers, but the script changes the parameters" in run.stderr()
