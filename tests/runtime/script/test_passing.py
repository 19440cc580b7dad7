"""A rank that is through with its counted steps epochs before another one, and both go on after they have met."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.script.runs import Run, adapted


def loops(run: Run) -> list[list[Any]]:
    """Of the first and the second loop, what each rank has."""
    made = [json.loads((run.folder / f"made.json.{rank}").read_text("utf-8")) for rank in run.ranks]
    return [list(ranks) for ranks in zip(*made, strict=True)]


def have_met(run: Run) -> bool:
    """Whether the ranks have the same parameters after each loop."""
    return all(first["weights"] == second["weights"] for first, second in loops(run))


def test_they_deal_out_the_same_epochs_afterwards(tmp_path: Path) -> None:
    run = adapted(tmp_path, "passing.py", "12", "21", policy="asp")
    assert have_met(run)
    epochs = defaultdict[int, list[int]](list)
    for epoch, index in [pair for rank in loops(run)[1] for pair in rank["seen"]]:
        epochs[epoch].append(index)
    assert all(len(seen) == len(set(seen)) for seen in epochs.values())
    assert 60 in map(len, epochs.values())


def test_the_one_that_waits_meets_the_coordinator_that_follows(tmp_path: Path) -> None:
    run = adapted(tmp_path, "passing.py", "12", "21", "kill", policy="asp", max_coordinator_restarts=1)
    assert have_met(run)


@pytest.mark.parametrize(("gate", "share"), [("1", "0.15"), ("21", "0.4")])
def test_a_switch_to_bsp_leaves_them_at_different_steps(tmp_path: Path, gate: str, share: str) -> None:
    """It comes before the first is through with its steps, or while that waits."""
    assert have_met(adapted(tmp_path, "passing.py", "12", gate, policy=f"switch:asp@{share},bsp", epochs=6))
