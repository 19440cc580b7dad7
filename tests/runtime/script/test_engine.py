"""Scripts that train in an engine of ignite, which asks how long an epoch is before the job deals out the data."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.script.runs import adapted

EPOCHS, SAMPLES = 5, 96


def told(folder: Path, *arguments: str, policy: str) -> list[dict[str, Any]]:
    """What each of two workers has seen, by rank."""
    run = adapted(folder, "engine.py", *arguments, policy=policy, stand_in=False)
    return [json.loads((folder / f"told.{rank}").read_text(encoding="utf-8")) for rank in run.ranks]


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_an_engine_makes_as_many_epochs_as_it_says(tmp_path: Path, policy: str) -> None:
    ranks = told(tmp_path, "0", policy=policy)
    assert [each["epochs"] for each in ranks] == [EPOCHS, EPOCHS]
    epochs = [sorted(first + second) for first, second in zip(*(each["seen"] for each in ranks), strict=True)]
    assert epochs[1:] == [[*range(SAMPLES)]] * (EPOCHS - 1) + [[]]
    assert all(each["lengths"] == [-(-len(seen) // 4) for seen in each["seen"][:-1]] for each in ranks)
    assert all(each["looked"] == EPOCHS * SAMPLES for each in ranks), "an evaluation has the whole data set"


def test_a_length_that_the_user_gives_is_kept(tmp_path: Path) -> None:
    ranks = told(tmp_path, "10", policy="bsp")
    assert all(each["lengths"] == [10] * EPOCHS for each in ranks)
