"""Ranks of an unmodified script that do not agree on their data are refused before they train."""

import re
from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, try_adapted

REFUSED = {
    "seed": r"its loader has seed=[01], that of rank [01] has seed=[01]; give the same seed on every rank",
    "batch_size": r"its loader has batch_size=[23], that of rank [01] has batch_size=[23]; give the same batch_size",
    "split": r"its loader has subset=\w+, that of rank [01] has subset=\w+; a random split differs from rank to rank",
    "data": r"sample 0 of its data set is \S+ in the mean, on rank [01] \S+; all workers must load the same data",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_rank_that_differs_is_refused(tmp_path: Path, what: str) -> None:
    run = try_adapted(tmp_path, "differing.py", what, stand_in=False)
    assert sorted(run.codes) == [0, 2], [run.stderr(rank) for rank in run.ranks]
    refused = run.codes.index(2)
    last = run.stderr(refused).splitlines()[-1]
    assert re.fullmatch(rf"polyrhythm: rank {refused} cannot take part: {REFUSED[what]}.*", last), last


@pytest.mark.parametrize("what", ["augmented", "look", ""])
@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_random_items_and_a_look_of_one_rank_are_no_difference(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "differing.py", what, policy=policy, stand_in=False)
    assert run.seen[1] == list(range(48))
