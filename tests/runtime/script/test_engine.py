"""Scripts that train in an engine of ignite, which asks how long an epoch is before the job deals out the data."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.runtime.script.data.engine_epochs import ShownLength
from tests.runtime.script.runs import adapted

EPOCHS, SAMPLES = 5, 96


def told(folder: Path, *arguments: str, policy: str) -> list[dict[str, Any]]:
    """What each of two workers has seen, by rank."""
    run = adapted(folder, "engine.py", *arguments, policy=policy, stand_in=False)
    return [json.loads((folder / f"told.{rank}").read_text(encoding="utf-8")) for rank in run.ranks]


@pytest.mark.parametrize(("how", "policy"), [("0", "bsp"), ("0", "asp"), ("0", "local:4"), ("resumed", "bsp")])
def test_an_engine_makes_as_many_epochs_as_it_says(tmp_path: Path, how: str, policy: str) -> None:
    ranks = told(tmp_path, how, policy=policy)
    assert [each["epochs"] for each in ranks] == [EPOCHS, EPOCHS]
    epochs = [sorted(first + second) for first, second in zip(*(each["seen"] for each in ranks), strict=True)]
    assert epochs[1:] == [[*range(SAMPLES)]] * (EPOCHS - 1) + [[]]
    lengths = [[-(-len(seen) // 4) for seen in each["seen"][:-1]] for each in ranks]
    assert how == "resumed" or [each["lengths"] for each in ranks] == lengths
    assert all(each["looked"] == EPOCHS * SAMPLES for each in ranks), "an evaluation has the whole data set"


def test_a_shown_length_computes_and_equals_no_count_within_an_epoch() -> None:
    within = True
    shown = ShownLength(24, lambda: within)
    assert (shown * 2, 30 % shown, f"{shown}") == (48, 6, "24")
    assert not any(count == shown for count in range(30))
    assert type(pickle.loads(pickle.dumps(shown))) is int  # noqa: S301
    within = False
    assert [count for count in range(30) if count == shown] == [24]


def test_a_length_that_the_user_gives_is_kept(tmp_path: Path) -> None:
    ranks = told(tmp_path, "10", policy="bsp")
    assert all(each["lengths"] == [10] * EPOCHS for each in ranks)
