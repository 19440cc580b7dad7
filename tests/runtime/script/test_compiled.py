"""Scripts that compile their model."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain


def ends(run: Run, rank: int) -> list[str]:
    """Operations in each graph, of which evaluation has its own, and the weights."""
    return (run.folder / f"end.{rank}").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("order", ["inside", "outside", "method", "loss", "whole"])
def test_bsp_is_what_torchrun_does(tmp_path: Path, order: str) -> None:
    ours = adapted(tmp_path / "ours", "compiled.py", order, stand_in=False)
    theirs = plain(tmp_path / "theirs", "compiled.py", order, stand_in=False)
    for rank in range(2):
        assert ends(ours, rank) == ends(theirs, rank)
    assert "Warning" not in ours.stderr()


@pytest.mark.parametrize(
    ("order", "graphs"),
    [
        ("inside", [3, 3]),
        ("outside", [3, 3]),
        ("alone", [3, 3]),
        ("alone-method", [3, 3]),
        ("alone-whole", [4]),
        ("whole", [0, 1, 3]),
    ],
)
def test_what_is_compiled_follows_other_policies(tmp_path: Path, order: str, graphs: list[int]) -> None:
    run = adapted(tmp_path, "compiled.py", order, policy="asp", stand_in=False)
    assert ends(run, 0)[0] == str(graphs)


def test_a_function_that_calls_the_model_of_a_session_is_compiled(tmp_path: Path) -> None:
    compiled = adapted(tmp_path / "compiled", "compiled.py", "session-whole", stand_in=False)
    written = adapted(tmp_path / "written", "compiled.py", "session-not", stand_in=False)
    assert {*ends(compiled, 0), *ends(compiled, 1)} == {*ends(written, 0)}
