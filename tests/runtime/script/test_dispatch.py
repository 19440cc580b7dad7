"""Scripts of which one rank reads the data and hands them on to the others."""

import re
from pathlib import Path

import pytest

from polyrhythm.runtime.script.bootstrap import main
from polyrhythm.testing.processes import ProcessOutcome
from tests.runtime.jobs import job
from tests.runtime.script.runs import SCRIPTS, Run, adapted, meeting_point, plain, play, try_adapted


def weights(run: Run) -> str:
    """Parameters at the end, which all ranks must have."""
    (text,) = {(run.folder / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks}
    return text


@pytest.mark.parametrize("what", ["idle", "none", "idle two"])
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, what: str) -> None:
    theirs = plain(tmp_path / "theirs", "dispatch.py", *what.split(), stand_in=False)
    ours = adapted(tmp_path / "ours", "dispatch.py", *what.split(), stand_in=False)
    assert [ours.epochs_of(rank) for rank in ours.ranks] == [theirs.epochs_of(rank) for rank in theirs.ranks]
    assert [ours.stdout(rank) for rank in ours.ranks] == [theirs.stdout(rank) for rank in theirs.ranks]
    assert weights(ours) == weights(theirs)


@pytest.mark.parametrize("policy", ["local:4", "selsync:delta=0.3"])
@pytest.mark.parametrize("what", ["idle", "none"])
def test_replicas_are_equal_at_the_end(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "dispatch.py", what, policy=policy, stand_in=False)
    assert weights(run)
    assert run.seen == [list(range(88))] * 3
    assert run.stdout(0) == run.stdout(1)
    assert all(len(set(line.strip("[]").split(", "))) == 1 for line in run.stdout(0))


def test_workers_that_step_by_themselves_are_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "dispatch.py", "idle", policy="asp", stand_in=False)
    assert run.codes == [2, 2]


@pytest.mark.parametrize("what", ["idle", "none"])
def test_who_is_handed_nothing_any_more_ends_with_a_line(tmp_path: Path, what: str) -> None:
    first, second = broken(tmp_path, what, "reading")
    assert "the stream is broken" in first.traceback
    assert second.value == 1
    (said,) = [line for line in stderr(tmp_path, 1) if "rank 1" in line]
    assert re.search(r"dispatch.py:\d+: broadcast brings nothing: what another rank has for it is lost", said)


def test_who_hands_on_goes_on_without_a_worker_that_fails(tmp_path: Path) -> None:
    first, second = broken(tmp_path, "idle", "stepping")
    assert first.value == 0
    assert "the worker is broken" in second.traceback


def test_a_policy_that_counts_shares_is_refused_by_all(tmp_path: Path) -> None:
    first, second = broken(tmp_path, "idle", "", policy="switch:bsp@0.5,asp")
    assert (first.value, second.value) in [(2, 1), (2, 2)]
    assert "counts shares of epochs whose length nobody knows" in stderr(tmp_path, 0)[-1]


def stderr(folder: Path, rank: int) -> list[str]:
    return (folder / f"stderr.{rank}").read_text(encoding="utf-8").splitlines()


def broken(folder: Path, *arguments: str, policy: str = "bsp") -> list[ProcessOutcome]:
    """What becomes of the ranks of a script of which one fails; all end within seconds."""
    store = meeting_point()
    command = (str(SCRIPTS / "dispatch.py"), *arguments)
    with job(play, 2, folder, 2, store.port, main, command, policy=policy) as running:
        return running.ranks.join(20.0)
