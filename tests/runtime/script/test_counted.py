"""Scripts that count their steps and keep what they read, so that no pass says when they are through."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain

HOWS = ["endless", "restarted", "two", "cycled", "cycled alone", "cycled each epoch"]


def weights(run: Run) -> list[str]:
    return [(run.folder / f"weights.{rank}").read_text("utf-8") for rank in run.ranks]


def scheduled(run: Run) -> list[int]:
    """Steps of the schedule on each rank."""
    return [int((run.folder / f"rate.{rank}").read_text("utf-8")) for rank in run.ranks]


@pytest.mark.parametrize("policy", ["asp", "local:4"])
@pytest.mark.parametrize("how", HOWS)
def test_after_the_loop_all_have_the_same_parameters(tmp_path: Path, how: str, policy: str) -> None:
    run = adapted(tmp_path, "counted.py", how, "21", policy=policy)
    first, second = weights(run)
    assert first == second
    fewest, most = sorted(scheduled(run))
    assert most - fewest <= (policy == "asp"), "a mini-batch that is drawn and not used may count"


@pytest.mark.parametrize("how", ["uneven", "own lengths"])
def test_who_is_through_epochs_before_the_others_gets_what_they_train(tmp_path: Path, how: str) -> None:
    """It makes the epochs that they begin without data, while it waits for them in a collective."""
    run = adapted(tmp_path, "counted.py", how, "21", policy="asp")
    first, second = weights(run)
    assert first == second
    assert set(scheduled(run)) <= {21, 22}


@pytest.mark.parametrize(("policy", "free"), [("asp", ["free"]), ("local:4", []), ("selsync:delta=0.3", [])])
def test_without_a_loader_the_loop_ends_at_the_first_collective_after_it(
    tmp_path: Path, policy: str, free: list[str]
) -> None:
    run = adapted(tmp_path, "counted.py", "drawn", "21", *free, policy=policy)
    first, second = weights(run)
    assert first == second
    assert "inside the step loop" not in run.stderr()


@pytest.mark.parametrize("how", [*HOWS, "drawn"])
def test_bsp_is_as_without_us(tmp_path: Path, how: str) -> None:
    alone = plain(tmp_path / "alone", "counted.py", how, "21")
    run = adapted(tmp_path / "run", "counted.py", how, "21")
    assert weights(run) == weights(alone)
    assert scheduled(run) == scheduled(alone)


@pytest.mark.parametrize(
    ("shape", "steps"),
    [("same_iterator", 8), ("two_loops", 16), ("drawn", 16), ("optimizers", 16), ("stepping_generator", 8)],
)
def test_a_script_that_goes_on_has_left_nothing(tmp_path: Path, shape: str, steps: int) -> None:
    """Two ranks make as many steps together as under torchrun."""
    run = adapted(tmp_path, "phases.py", shape, policy="asp")
    assert sum(int(run.stdout(rank)[-1]) for rank in run.ranks) == 2 * steps
