"""Random numbers that the script and its data draw, beside evaluations and where loader processes stay."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("what", ["looks", "held", "late", "stays", "glance"])
def test_under_bsp_they_are_those_of_torchrun(tmp_path: Path, what: str) -> None:
    ours = adapted(tmp_path / "ours", "draws.py", what, stand_in=False)
    theirs = plain(tmp_path / "theirs", "draws.py", what, stand_in=False)
    for rank in ours.ranks:
        words = [(run.folder / f"weights.{rank}").read_text("utf-8") for run in (ours, theirs)]
        assert words[0] == words[1]
