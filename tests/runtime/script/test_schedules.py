"""Learning rates that a script changes within an epoch, under policies and beside plain Python."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain, try_adapted


def rates(run: Run, rank: int) -> list[float]:
    """At the end of each epoch."""
    return [float(word) for word in ends(run, rank)[0].split()]


def ends(run: Run, rank: int) -> list[str]:
    return (run.folder / f"end.{rank}").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4", "switch:bsp@0.3,asp@0.3,bsp"])
def test_a_schedule_of_a_single_process_covers_its_length_on_all_workers(tmp_path: Path, policy: str) -> None:
    alone = plain(tmp_path / "alone", "schedule.py", "alone", "cycle", ranks=1)
    run = adapted(tmp_path / "ours", "schedule.py", "alone", "cycle", policy=policy, epochs=4)
    assert rates(run, 0) == rates(run, 1) == rates(alone, 0)
    assert ends(run, 0) == ends(run, 1)
    assert "OneCycleLR.step counts the mini-batches of all workers" in run.stderr()


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_a_warm_up_ends_with_its_epoch(tmp_path: Path, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "schedule.py", "ddp", "warm-up")
    run = adapted(tmp_path / "ours", "schedule.py", "ddp", "warm-up", policy=policy)
    assert rates(run, 0) == rates(run, 1) == rates(theirs, 0)
    assert policy != "bsp" or ends(run, 1) == ends(theirs, 1)


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_one_may_step_with_every_step_and_once_more_after_an_epoch(tmp_path: Path, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "schedule.py", "ddp", "twice")
    run = adapted(tmp_path / "ours", "schedule.py", "ddp", "twice", policy=policy)
    assert ends(run, 0)[-1] == ends(run, 1)[-1] == ends(theirs, 0)[-1]
    assert policy != "bsp" or ends(run, 1) == ends(theirs, 1)


@pytest.mark.parametrize("policy", ["bsp", "asp", "switch:bsp@0.5,asp"])
def test_a_scheduler_made_of_others_is_one(tmp_path: Path, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "schedule.py", "ddp", "sequence")
    run = adapted(tmp_path / "ours", "schedule.py", "ddp", "sequence", policy=policy, epochs=4)
    assert rates(run, 0) == rates(run, 1) == rates(theirs, 0)
    assert ends(run, 0)[-1] == ends(run, 1)[-1] == ends(theirs, 0)[-1] == "24"


@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_one_in_a_loop_that_is_left_early_counts_the_steps_that_are_made(tmp_path: Path, policy: str) -> None:
    theirs = plain(tmp_path / "theirs", "schedule.py", "ddp", "left")
    run = adapted(tmp_path / "ours", "schedule.py", "ddp", "left", policy=policy)
    assert rates(run, 0) == rates(run, 1) == rates(theirs, 0)
    assert policy != "bsp" or ends(run, 1) == ends(theirs, 1)


def test_a_step_that_a_scaler_leaves_out_before_the_end_of_a_loop_counts(tmp_path: Path) -> None:
    theirs = plain(tmp_path / "theirs", "schedule.py", "ddp", "skip")
    run = adapted(tmp_path / "ours", "schedule.py", "ddp", "skip")
    assert [ends(run, rank) for rank in run.ranks] == [ends(theirs, rank) for rank in theirs.ranks]


def test_under_asp_a_mini_batch_that_is_drawn_and_not_used_may_count(tmp_path: Path) -> None:
    run = adapted(tmp_path, "schedule.py", "ddp", "left", policy="asp")
    assert {ends(run, 0)[-1], ends(run, 1)[-1]} <= {"16", "17"}


@pytest.mark.parametrize("ranks", ["ddp", "alone"])
def test_one_that_steps_by_a_value_after_the_loop_is_untouched(tmp_path: Path, ranks: str) -> None:
    run = adapted(tmp_path, "schedule.py", ranks, "plateau", policy="asp")
    assert rates(run, 0) == rates(run, 1) == [0.4 * 0.1 * 0.5**epoch for epoch in range(4)]


def test_replicas_that_are_no_longer_equal_end_the_job(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "schedule.py", "ddp", "apart")
    assert all(run.codes)
    assert "of their norm apart: their learning rates are 0.01 to 0.02" in run.stderr()


@pytest.mark.parametrize("ranks", ["ddp", "alone"])
def test_one_that_steps_by_a_value_within_the_loop_is_refused_before_its_policy_comes_to_steps_apart(
    tmp_path: Path, ranks: str
) -> None:
    run = try_adapted(tmp_path, "schedule.py", ranks, "within", policy="switch:bsp@0.9,asp", epochs=4)
    assert 2 in run.codes
    assert all(run.codes)
    said = "ReduceLROnPlateau.step with an argument inside the step loop; workers that make steps of their own, as in a"
    assert said in run.stderr()


@pytest.mark.parametrize("policy", ["bsp", "switch:bsp@0.5,local:4", "switch:bsp@1,asp"])
def test_it_may_do_so_where_workers_step_together_to_the_end(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "schedule.py", "ddp", "within", policy=policy, epochs=4)
    assert rates(run, 0) == rates(run, 1)
