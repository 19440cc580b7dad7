"""Ranks that read the same, and have something of their own."""

from pathlib import Path

from tests.runtime.script.runs import adapted, plain


def test_what_all_ranks_read_each_trains_on_as_under_torchrun(tmp_path: Path) -> None:
    theirs = plain(tmp_path / "theirs", "alike.py", stand_in=False)
    ours = adapted(tmp_path / "ours", "alike.py", stand_in=False)
    assert ours.stdout(0) == theirs.stdout(0)
    assert "each rank reads its own mini-batches, as under torchrun" in ours.stderr()
    for rank in ours.ranks:
        assert (ours.folder / f"weights.{rank}").read_text() == (theirs.folder / f"weights.{rank}").read_text()
