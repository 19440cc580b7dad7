"""A rank that makes no step with a mini-batch."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.script.runs import Run, adapted


def made_by(run: Run) -> list[dict[str, Any]]:
    return [json.loads((run.folder / f"made.{rank}").read_text("utf-8")) for rank in run.ranks]


@pytest.mark.parametrize(("who", "compress"), [(0, "none"), (1, "none"), (1, "int8")])
def test_nobody_waits_for_a_rank_that_skips_alone(tmp_path: Path, who: int, compress: str) -> None:
    """It makes the step of the others, so that the replicas stay equal; its own samples are not in it.

    Compressed gradients were exchanged twice a step, and once by this rank, and all hung.
    """
    first, second = made = made_by(adapted(tmp_path, "skipped.py", str(who), "next", compress=compress))
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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [2, 6])
@pytest.mark.parametrize(("scaler", "scale"), [("used", 64.0 * 2**4), ("unused", 64.0)])
def test_nobody_waits_for_it_in_a_backward_pass_either(
    tmp_path: Path, step: int, scaler: str, scale: float, when: str
) -> None:
    """It hung with a GradScaler: that of the step before was taken for one that had looked at this step's gradients.

    One that the script does not use divided the gradients of the others, the scale of one that had missed a step grew a
    step later than theirs, and the gradients of the others were taken as they are before they are clipped.
    """
    first, second = made = made_by(adapted(tmp_path, "skipped_wrapped.py", str(step), when, scaler, "train", "99"))
    assert first["made"] == second["made"]
    assert [each["scale"] for each in made] == [scale] * 2


@pytest.mark.parametrize("scaler", ["used", "unused"])
def test_nor_where_the_model_is_in_evaluation_mode(
    tmp_path: Path, scaler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = made_by(adapted(tmp_path, "skipped_wrapped.py", "6", "before", scaler, "eval", "99"))
    assert first == second
    assert "exchange failed" not in capfd.readouterr().err


def test_what_is_clipped_no_longer_is_not_clipped_for_it(tmp_path: Path) -> None:
    first, second = made_by(adapted(tmp_path, "skipped_wrapped.py", "6", "before", "unused", "train", "3"))
    assert first == second
