"""Unmodified scripts whose workers have unequal shares: the script's own loader and model, other mini-batches."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain, try_adapted

RESTLESS = "tests.restless:Restless"
EPOCHS, SAMPLES = 3, 96


def weights(run: Run, key: str) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in torch.load(run.folder / "snapshot.pt")[key].values()])


def sizes(run: Run) -> set[int]:
    """Samples that the two ranks have seen in the epochs after the first."""
    return {len(epoch) for rank in run.ranks for epoch in run.epochs_of(rank)[1:]}


@pytest.mark.parametrize("fetching", ["0", "1"])
def test_distributed_data_parallel_takes_the_mean_over_all_samples(tmp_path: Path, fetching: str) -> None:
    arguments = ("trainer.py", str(EPOCHS), "--workers", fetching)
    ours = adapted(tmp_path / "ours", *arguments, policy=RESTLESS)
    theirs = plain(tmp_path / "theirs", *arguments)
    assert ours.seen == [list(range(SAMPLES))] * EPOCHS
    assert len(sizes(ours)) > 1, "unequal"
    torch.testing.assert_close(weights(ours, "MODEL_STATE"), weights(theirs, "MODEL_STATE"), rtol=1e-4, atol=1e-6)


def test_equal_shares_are_bsp_to_the_bit(tmp_path: Path) -> None:
    runs = [adapted(tmp_path / policy[:3], "trainer.py", "3", policy=policy) for policy in ("balanced:8", "bsp")]
    assert torch.equal(*(weights(run, "MODEL_STATE") for run in runs))
    assert [runs[0].epochs_of(rank) for rank in range(2)] == [runs[1].epochs_of(rank) for rank in range(2)]


def test_a_scaler_and_clipping_come_after_the_sum(tmp_path: Path) -> None:
    """In half precision: to its tolerance."""
    ours = adapted(tmp_path / "ours", "scaled.py", "2", policy=RESTLESS)
    theirs = plain(tmp_path / "theirs", "scaled.py", "2")
    assert ours.seen == theirs.seen
    torch.testing.assert_close(weights(ours, "model"), weights(theirs, "model"), rtol=2e-2, atol=2e-2)


def test_a_script_for_one_process(tmp_path: Path) -> None:
    run = adapted(tmp_path, "alone.py", "3", "shuffle", policy=RESTLESS)
    assert run.seen[1:] == [list(range(SAMPLES))] * 2
    first, second = [(tmp_path / f"weights.{rank}").read_text(encoding="utf-8") for rank in range(2)]
    assert first == second
    assert [run.stderr(rank).count("shares are unequal, and batch norm (norm) takes") for rank in range(2)] == [1, 0]


def test_a_share_is_cut_into_the_mini_batches_that_a_script_adds_up(tmp_path: Path) -> None:
    """Also in an epoch's last step, which has fewer of them."""
    arguments = ("residual.py", "--accumulate", "2", "--samples", "108", "--rest", "--no-norm")
    ours = adapted(tmp_path / "ours", *arguments, policy=RESTLESS)
    theirs = plain(tmp_path / "theirs", *arguments)
    assert ours.seen == theirs.seen
    assert len(sizes(ours)) > 1, "unequal"
    torch.testing.assert_close(end(ours), end(theirs), rtol=1e-4, atol=1e-5)


def end(run: Run) -> torch.Tensor:
    made = torch.load(run.folder / "end.0")["model"]
    return torch.cat([tensor.reshape(-1) for tensor in made.values()])


def test_what_cannot_be_weighed_is_refused_in_one_line(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "odd.py", "sum", policy="balanced", ranks=1)
    assert run.codes == [2], run.stderr()
    last = run.stderr().splitlines()[-1]
    assert last.startswith("polyrhythm: ")
    assert "the loss is a sum over its mini-batch" in last
