"""A rank whose GradScaler has skipped a step, in a script that exchanges gradients just before its steps."""

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
    first, second = made = made_by(adapted(tmp_path, "skipped.py", str(who)))
    assert [each["scale"] for each in made] == [32.0 if rank == who else 64.0 for rank in range(2)]
    assert first["made"] == second["made"]


def test_where_all_skip_nothing_moves(tmp_path: Path) -> None:
    for made in made_by(adapted(tmp_path, "skipped.py", "all")):
        moved = [before != after for before, after in pairwise(made["weights"])]
        assert moved == [step != 5 for step in range(len(moved))]
        assert made["scale"] == 32.0
