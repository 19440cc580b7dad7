"""Scripts that leave their loop in the middle of an epoch, after a number of steps."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain


def results(run: Run) -> list[str]:
    """Parameters of each rank at the end, and the steps of all."""
    return [(run.folder / f"weights.{rank}").read_text("utf-8") for rank in run.ranks]


def test_a_rank_that_is_through_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """It stands in a collective, the other one still needs an epoch after this one."""
    run = adapted(tmp_path, "limited.py", "12", "1", policy="asp")
    assert [line.split()[-1] for line in results(run)] == ["24", "24"]


@pytest.mark.parametrize("policy", ["local:4", "selsync:0.3", "esync", "esync:blocking=False"])
def test_all_that_have_left_it_have_the_same_parameters(tmp_path: Path, policy: str) -> None:
    first, second = results(adapted(tmp_path, "limited.py", "6", "0", policy=policy))
    assert first == second


def test_bsp_is_as_without_us(tmp_path: Path) -> None:
    alone = plain(tmp_path / "alone", "limited.py", "12", "0")
    assert results(adapted(tmp_path / "run", "limited.py", "12", "0")) == results(alone)


def test_collectives_after_the_loop_are_waited_for_where_the_script_waits(tmp_path: Path) -> None:
    run = adapted(tmp_path, "orders.py", policy="asp")
    assert [run.stdout(rank)[-1] for rank in run.ranks] == ["4.0 4.0"] * 2
