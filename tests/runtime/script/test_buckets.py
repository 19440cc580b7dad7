"""Torch lays its buckets out anew after the first step, and the order in which ranks are added up follows from that."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain


def weights(run: Run) -> set[str]:
    return {(run.folder / f"weights.{rank}").read_text("utf-8") for rank in run.ranks}


KINDS = {"plain": "600", "static": "60", "static later": "60", "views": "60", "twice": "60"}


@pytest.mark.parametrize(("kind", "width"), KINDS.items())
def test_three_ranks_have_the_bits_of_torchrun_in_all_steps(tmp_path: Path, kind: str, width: str) -> None:
    ours = adapted(tmp_path / "ours", "buckets.py", kind, width, ranks=3, stand_in=False, max_coordinator_restarts=1)
    theirs = plain(tmp_path / "theirs", "buckets.py", kind, width, ranks=3, stand_in=False)
    assert weights(ours) == weights(theirs)
    assert len(weights(ours)) == 1


@pytest.mark.parametrize("kind", ["frozen", "thawed"])
def test_another_training_of_other_parameters_exchanges_those(tmp_path: Path, kind: str) -> None:
    """Torch raises an error, or trains each rank for itself: its buckets are those of the first training."""
    run = adapted(tmp_path, "buckets.py", kind, "60", stand_in=False, max_coordinator_restarts=1)
    assert len(weights(run)) == 1
