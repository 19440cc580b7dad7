"""A tutorial's script, byte for byte, under policies that it knows nothing of."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import adapted, plain

EPOCHS, SAMPLES = 3, 96


@pytest.mark.parametrize("policy", ["asp", "local:3"])
def test_every_sample_once_in_every_epoch(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "trainer.py", str(EPOCHS), policy=policy)
    assert run.seen == [list(range(SAMPLES))] * EPOCHS


def test_bsp_is_what_torchrun_does(tmp_path: Path) -> None:
    ours, theirs = adapted(tmp_path / "ours", "trainer.py", "3"), plain(tmp_path / "theirs", "trainer.py", "3")
    assert [ours.epochs_of(rank) for rank in ours.ranks] == [theirs.epochs_of(rank) for rank in theirs.ranks]
    a, b = (torch.load(run.folder / "snapshot.pt")["MODEL_STATE"] for run in (ours, theirs))
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert ours.stdout(0) == theirs.stdout(0)


def test_it_says_what_it_adapts(tmp_path: Path) -> None:
    run = adapted(tmp_path, "trainer.py", "1")
    lines = [line for line in run.stderr().splitlines() if "trainer.py:" in line]
    assert len(lines) == 4, run.stderr()
    for what in ("process group", "DistributedDataParallel", "training loader", "SGD.step"):
        assert sum(what in line for line in lines) == 1
