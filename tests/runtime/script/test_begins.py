"""Optimizers that first step later than others."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import SCRIPTS, Run, adapted, plain, try_adapted


def weights(run: Run, rank: int) -> str:
    return (run.folder / f"weights.{rank}").read_text("utf-8")


def line_of(text: str) -> int:
    lines = (SCRIPTS / "begins.py").read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


@pytest.mark.parametrize(("start", "way"), [("3", "critic"), ("10", "critic"), ("8", "made")])
def test_bsp_is_what_torchrun_does(tmp_path: Path, start: str, way: str) -> None:
    theirs = plain(tmp_path / "theirs", "begins.py", start, way)
    ours = adapted(tmp_path / "ours", "begins.py", start, way, max_coordinator_restarts=1)
    assert {weights(ours, rank) for rank in ours.ranks} == {weights(theirs, 0)}


@pytest.mark.parametrize("policy", ["asp", "local:4"])
@pytest.mark.parametrize(("start", "way"), [("10", "critic"), ("8", "made")])
def test_they_follow_other_policies(tmp_path: Path, policy: str, start: str, way: str) -> None:
    run = adapted(tmp_path, "begins.py", start, way, policy=policy, max_coordinator_restarts=1)
    assert weights(run, 0) == weights(run, 1)


def test_in_a_script_for_one_process_its_model_was_called_before(tmp_path: Path) -> None:
    assert "SGD.step and SGD.step follow the policy" in adapted(tmp_path, "begins.py", "10", "once").stderr()


@pytest.mark.parametrize(
    ("way", "step", "why"),
    [
        ("alone", "# of the critic", "of no model that was called before the first step; call models themselves"),
        ("same", "# of the model", "steps parameters of one that has stepped, and a policy has one optimizer for each"),
    ],
)
def test_what_is_not_known_at_the_start_is_refused_with_its_cause(
    tmp_path: Path, way: str, step: str, why: str
) -> None:
    run = try_adapted(tmp_path, "begins.py", "10", way)
    assert set(run.codes) == {2}, run.stderr()
    said = run.stderr().splitlines()[-1]
    assert f"begins.py:{line_of(step)}: " in said
    assert why in said
