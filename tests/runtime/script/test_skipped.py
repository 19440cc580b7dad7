"""A rank that makes no step with a mini-batch, in a script that exchanges gradients just before its steps."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.script.runs import Run, adapted


def made_by(run: Run) -> list[dict[str, Any]]:
    return [json.loads((run.folder / f"made.{rank}").read_text("utf-8")) for rank in run.ranks]


@pytest.mark.parametrize("who", [0, 1])
def test_nobody_waits_for_a_rank_that_skips_alone(tmp_path: Path, who: int) -> None:
    """It makes the step of the others, so that the replicas stay equal; its own samples are not in it."""
    first, second = made = made_by(adapted(tmp_path, "skipped.py", str(who), "next"))
    assert [len(each["weights"]) for each in made] == [16 if rank == who else 17 for rank in range(2)]
    assert first["made"] == second["made"]


@pytest.mark.parametrize("who", ["0", "1", "all"])
def test_a_scaler_finds_the_infinities_of_all_so_that_nothing_moves(tmp_path: Path, who: str) -> None:
    first, second = made = made_by(adapted(tmp_path, "skipped.py", who, "infinite"))
    for each in made:
        moved = [before != after for before, after in pairwise(each["weights"])]
        assert moved == [step != 5 for step in range(len(moved))]
        assert each["scale"] == 32.0
    assert first["made"] == second["made"]
