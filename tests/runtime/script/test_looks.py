"""Scripts that evaluate their training data while they train on them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize(("what", "parts"), [("held", 1), ("nested", 2), ("glance", 1), ("forgets", 2)])
def test_a_look_at_the_training_data_leaves_the_epoch_as_it_is(
    tmp_path: Path, what: str, parts: int, policy: str
) -> None:
    run = adapted(tmp_path, "looks.py", what, str(parts), policy=policy, stand_in=False)
    first, second = ((tmp_path / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks)
    if (what, policy) != ("held", "asp"):  # which ends within an epoch of the job
        assert first == second
    seen = [index for rank in run.ranks for (epoch,) in [run.epochs_of(rank)] for index in epoch[1:]]
    for rank in run.ranks:
        assert run.epochs_of(rank)[0][0] % 24 == 0 or what == "glance", "whole passes"
    if what != "held":
        assert set(Counter(seen).values()) <= {3, 4}, "each once an epoch, and the first mini-batches on both ranks"
