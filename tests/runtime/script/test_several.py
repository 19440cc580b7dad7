"""Several optimizers in one script."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain, switched, try_adapted


def weights(run: Run, rank: int = 0) -> torch.Tensor:
    return torch.tensor([float(word) for word in (run.folder / f"weights.{rank}").read_text("utf-8").split()])


@pytest.mark.parametrize("what", ["gan", "critic", "kinds", "scalers", "eager"])
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, what: str) -> None:
    ours, theirs = adapted(tmp_path / "ours", "several.py", what), plain(tmp_path / "theirs", "several.py", what)
    for rank in ours.ranks:
        assert torch.equal(weights(ours, rank), weights(theirs, rank))


@pytest.mark.parametrize("what", ["gan", "critic", "eager"])
def test_a_single_worker_under_asp_is_the_script_by_itself(tmp_path: Path, what: str) -> None:
    ours = adapted(tmp_path / "ours", "several.py", what, policy="asp", ranks=1)
    theirs = plain(tmp_path / "theirs", "several.py", what, ranks=1)
    assert torch.allclose(weights(ours), weights(theirs), rtol=1e-4, atol=1e-6)


def test_each_may_have_a_scaler_of_its_own(tmp_path: Path) -> None:
    run = adapted(tmp_path, "several.py", "scalers", "alone")
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert weights(run).isfinite().all()


@pytest.mark.parametrize("policy", ["asp", "k-sync:1"])
def test_ranks_end_with_one_model(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "several.py", "gan", policy=policy)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert "Adam.step and Adam.step follow the policy" in run.stderr()


def test_a_script_for_one_process_averages_what_each_of_them_takes(tmp_path: Path) -> None:
    run = adapted(tmp_path / "two", "several.py", "critic", "alone")
    assert torch.equal(weights(run, 0), weights(run, 1))
    one = adapted(tmp_path / "one", "several.py", "critic", "alone", policy="local:2", ranks=1)
    by_itself = plain(tmp_path / "plain", "several.py", "critic", "alone", ranks=1)
    assert torch.allclose(weights(one), weights(by_itself), rtol=1e-5, atol=1e-7)


def test_buffers_that_a_later_backward_pass_needs_stay_until_then(tmp_path: Path) -> None:
    run = adapted(tmp_path, "several.py", "buffers", "alone")
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_it_follows_live_switches(tmp_path: Path) -> None:
    run = switched(tmp_path, "several.py", "gan", switches={10: "asp", 25: "local:2"})
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_optimizers_of_two_kinds_stay_with_their_workers(tmp_path: Path) -> None:
    run = adapted(tmp_path / "local", "several.py", "kinds", policy="local:3")
    assert torch.equal(weights(run, 0), weights(run, 1))
    refused = try_adapted(tmp_path / "asp", "several.py", "kinds", policy="asp", ranks=1)
    assert refused.codes == [2]
    assert "asp runs on parameter servers, but the optimizers AdamW and Muon are of several kinds" in refused.stderr()


@pytest.mark.parametrize("what", ["gan", "critic", "between"])
def test_without_a_loader_each_optimizer_step_is_one_of_the_job(tmp_path: Path, what: str) -> None:
    """Workers that draw the same make the script's own steps."""
    alone = plain(tmp_path / "plain", "drawn_pair.py", what, "30", ranks=1, stand_in=False)
    run = adapted(tmp_path / "bsp", "drawn_pair.py", what, "30", stand_in=False)
    for rank in run.ranks:
        assert torch.allclose(weights(run, rank), weights(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("what", ["gan", "critic"])
def test_without_a_loader_a_single_worker_under_asp_is_the_script(tmp_path: Path, what: str) -> None:
    alone = plain(tmp_path / "plain", "drawn_pair.py", what, "30", ranks=1, stand_in=False)
    run = adapted(tmp_path / "asp", "drawn_pair.py", what, "30", policy="asp", ranks=1, stand_in=False)
    assert torch.allclose(weights(run), weights(alone), rtol=1e-4, atol=1e-6)


def test_an_optimizer_that_never_steps_does_not_keep_workers_alone(tmp_path: Path) -> None:
    run = adapted(tmp_path, "drawn_pair.py", "idle", "30", "apart", stand_in=False)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert "Adam.step and Adam.step follow the policy" in run.stderr()


def test_what_a_policy_writes_between_two_passes_of_a_model_is_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "drawn_pair.py", "between", "30", policy="asp", ranks=1, stand_in=False)
    assert run.codes == [2]
    assert ": asp has written these parameters since their model was called" in run.stderr()


@pytest.mark.parametrize("what", ["gan", "critic"])
def test_without_a_loader_they_follow_live_switches(tmp_path: Path, what: str) -> None:
    switches = {20: "asp", 60: "local:4"}
    run = switched(tmp_path, "drawn_pair.py", what, "80", "apart", switches=switches, stand_in=False)
    assert all(weights(run, rank).isfinite().all() for rank in run.ranks)  # files are written before the last exchange
