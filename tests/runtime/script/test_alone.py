"""A script that was written for a single process runs on several."""

import json
import os
import tempfile
import time
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from polyrhythm.runtime.script.data.alone import share_folders
from polyrhythm.runtime.script.data.own_files import OwnFiles
from tests.runtime.script.runs import adapted

EVERY = list(range(96))


@pytest.mark.parametrize(("policy", "order"), [("bsp", "shuffle"), ("asp", "sequential"), ("local:3", "shuffle")])
def test_its_data_are_shared_out(tmp_path: Path, policy: str, order: str) -> None:
    run = adapted(tmp_path, "alone.py", "3", order, policy=policy)
    first, second = run.epochs_of(0), run.epochs_of(1)
    assert second[0][:8] == first[0][:8]  # the warm-up step, of which the first rank's step counts
    epochs = [sorted(a + b) for a, b in zip(first, [second[0][8:], *second[1:]], strict=True)]
    assert epochs == [EVERY] * 3
    weights = [(tmp_path / f"weights.{rank}").read_text(encoding="utf-8") for rank in range(2)]
    assert weights[0] == weights[1]
    assert len(run.stdout(0)) == 3
    assert run.stdout(1) == []
    with ZipFile(tmp_path / "whole.pt") as whole:
        saved = whole.read("whole/data.pkl")
    assert b"Linear" in saved
    assert not any(ours in saved for ours in (b"functools", b"polyrhythm")), "it is read with weights only, too"


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_it_reads_what_it_saves_and_a_mini_batch_may_be_larger_than_its_data(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "wide.py", policy=policy, stand_in=False)
    first, second = ((run.folder / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks)
    assert first == second
    assert (tmp_path / "model.pt").stat().st_size > 0


def made_in(folder: Path) -> set[str]:
    """Files there, but for what stands in for the terminal."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "std" not in path.name}


def test_it_moves_and_removes_what_it_has_saved(tmp_path: Path) -> None:
    adapted(tmp_path, "files.py", "move", stand_in=False)
    moved = {f"moved.{number}" for number in range(4)} | {f"epoch.{epoch}/model.pt" for epoch in range(3)}
    assert made_in(tmp_path) == {"final.pt", "whole.pt", "kept/copy.2"} | moved


def test_only_the_first_rank_writes_whatever_the_mode(tmp_path: Path) -> None:
    adapted(tmp_path, "files.py", "write", stand_in=False)
    assert (tmp_path / "log.csv").read_text(encoding="utf-8").split() == ["epoch", "0", "1", "2"]
    assert json.loads((tmp_path / "now.json").read_text(encoding="utf-8")) == [7, *range(1, 2000)]
    assert len(np.load(tmp_path / "all.npy")) == len(np.loadtxt(tmp_path / "all.txt")) == 2000
    assert made_in(tmp_path) == {"log.csv", "now.json", "all.npy", "all.npz", "all.txt", "all.pickle"}


def test_only_the_first_rank_writes_into_what_was_opened_before_the_first_step(tmp_path: Path) -> None:
    adapted(tmp_path, "files.py", "before", stand_in=False)
    for mode in "wa":
        assert (tmp_path / f"log.{mode}").read_text(encoding="utf-8").split() == ["epoch", "0", "1", "2"]
    assert (tmp_path / "log.bin").read_bytes() == b"012"
    logged = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in logged if not line.startswith("rank 0: ")] == [f"epoch {n}" for n in range(3)]


def test_a_rank_that_writes_no_file_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = OwnFiles()
    assert files.place("log.txt", "r") == "log.txt"
    assert files.place("model.pt", "rb") == "model.pt"
    assert not any(tmp_path.iterdir())
    assert files.place("model.pt", "wb").startswith(str(tmp_path))


@pytest.mark.parametrize(("alone", "passed", "made"), [(True, 0, True), (False, 0, False), (True, 60, False)])
def test_a_folder_that_another_worker_has_just_made_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool, passed: int, made: bool
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    now = time.time() + passed
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(os, "mkdir", os.mkdir)
    share_folders(lambda: alone)
    if made:
        folder.mkdir()
    else:
        with pytest.raises(FileExistsError):
            folder.mkdir()


def test_a_folder_that_another_worker_has_moved_meanwhile_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tmp_path / "half", os.mkdir
    folder.mkdir()

    def too_late(path: str, mode: int = 0o777) -> None:
        try:
            made(path, mode)
        finally:
            if not (tmp_path / "moved").exists():
                folder.rename(tmp_path / "moved")

    monkeypatch.setattr(os, "mkdir", too_late)
    share_folders(lambda: True)
    folder.mkdir()
    assert folder.is_dir()


def test_a_link_to_nothing_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "gone")
    monkeypatch.setattr(os, "mkdir", os.mkdir)
    share_folders(lambda: True)
    with pytest.raises(FileExistsError):
        link.mkdir()


def test_with_drop_last_all_mini_batches_are_whole(tmp_path: Path) -> None:
    adapted(tmp_path, "whole.py", stand_in=False)
