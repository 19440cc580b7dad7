"""Scripts whose ranks read streams of different lengths and agree in their loops who has data left."""

import re
from pathlib import Path

import pytest

from polyrhythm.runtime.script.bootstrap import main
from tests.runtime.jobs import LIMIT_S, job
from tests.runtime.script.runs import SCRIPTS, Run, adapted, meeting_point, plain, play

HOWS = ["any", "all", "called", "again", "cycled", "empty"]


def weights(run: Run) -> str:
    """Parameters at the end, which all ranks must have."""
    (text,) = {(run.folder / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks}
    return text


@pytest.mark.parametrize(("what", "ranks"), [*((how, 2) for how in HOWS), ("any", 3), ("all", 3)])
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, what: str, ranks: int) -> None:
    theirs = plain(tmp_path / "theirs", "agreed.py", what, ranks=ranks, stand_in=False)
    ours = adapted(tmp_path / "ours", "agreed.py", what, ranks=ranks, stand_in=False)
    steps = [[line.split()[0] for line in run.stdout(0)] for run in (ours, theirs)]
    assert steps[0] == steps[1]
    if ranks == 2:  # of three, gradients are added up in another order
        assert [ours.stdout(rank) for rank in ours.ranks] == [theirs.stdout(rank) for rank in theirs.ranks]
        assert weights(ours) == weights(theirs)


@pytest.mark.parametrize("policy", ["local:4", "asp"])
@pytest.mark.parametrize("how", HOWS)
def test_replicas_are_equal_at_the_end(tmp_path: Path, how: str, policy: str) -> None:
    run = adapted(tmp_path, "agreed.py", how, policy=policy, stand_in=False)
    assert weights(run)


def test_the_state_after_the_loop_is_that_of_all(tmp_path: Path) -> None:
    run = adapted(tmp_path, "agreed.py", "any", policy="local:4", stand_in=False)
    assert run.stdout(0) == run.stdout(1)


@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp"])
@pytest.mark.parametrize("when", ["within", "between"])
def test_one_rank_may_read_the_training_data_alone(tmp_path: Path, when: str, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "agreed.py", "any", when, stand_in=False)
    ours = adapted(tmp_path / "ours", "agreed.py", "any", when, policy=policy, stand_in=False)
    assert weights(ours)
    if policy == "bsp":
        assert [ours.stdout(rank) for rank in ours.ranks] == [theirs.stdout(rank) for rank in theirs.ranks]
        assert weights(ours) == weights(theirs)


@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp"])
@pytest.mark.parametrize(
    ("what", "said"), [("none", "some ranks read loaders, and others none"), ("loaders", "each rank reads its own")]
)
def test_ranks_may_read_in_different_ways(tmp_path: Path, what: str, said: str, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "unlike.py", what, stand_in=False)
    ours = adapted(tmp_path / "ours", "unlike.py", what, policy=policy, stand_in=False)
    assert said in ours.stderr()
    assert weights(ours)
    if policy == "bsp":
        assert weights(ours) == weights(theirs)


@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_ranks_that_wait_for_each_other_end_with_a_line(tmp_path: Path, policy: str) -> None:
    """What the job deals out can be read by all ranks only. They may wait within torch, and end without a way back."""
    store = meeting_point()
    with job(play, 2, tmp_path, 2, store.port, main, (str(SCRIPTS / "stalled.py"),), policy=policy) as running:
        outcomes = running.ranks.join(LIMIT_S)
    assert [outcome.exit_code for outcome in outcomes] == [2, 2]
    lines = [line for rank in range(2) for line in (tmp_path / f"stderr.{rank}").read_text("utf-8").splitlines()]
    (line,) = {line for line in lines if "until all" in line}
    assert re.search(r"stalled.py:\d+: rank 0 waits until all ranks begin .* rank 1 \(.*stalled.py:\d+\)", line)
