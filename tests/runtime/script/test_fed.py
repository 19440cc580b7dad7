"""Scripts whose loader is read by another thread than makes the steps."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("how", [(), ("iterator",)], ids=str)
def test_under_bsp_they_have_the_parameters_of_torchrun(tmp_path: Path, how: tuple[str, ...]) -> None:
    ours, theirs = (run(tmp_path / run.__name__, "fed.py", *how, stand_in=False) for run in (adapted, plain))
    assert "the script draws its data itself" in ours.stderr()
    for rank in ours.ranks:
        words = [(run.folder / f"weights.{rank}").read_text("utf-8") for run in (ours, theirs)]
        assert words[0] == words[1]
