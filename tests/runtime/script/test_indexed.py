"""A script that looks rates up by the number of its mini-batch."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_no_worker_takes_more_mini_batches_than_the_table_has(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path / "ours", "indexed.py", policy=policy, stand_in=False)
    taken = [(run.folder / f"taken.{rank}").read_text("utf-8").split() for rank in run.ranks]
    assert taken == [["12"] * 3] * 2
    assert "looks something up by the number of its mini-batch" in run.stderr()
    if policy == "bsp":
        theirs = plain(tmp_path / "theirs", "indexed.py", stand_in=False)
        assert (run.folder / "weights.0").read_text("utf-8") == (theirs.folder / "weights.0").read_text("utf-8")
