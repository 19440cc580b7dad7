"""Scripts that are left alone, and scripts that end in other ways."""

from pathlib import Path

from tests.runtime.script.runs import SCRIPTS, adapted, try_adapted

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_script_with_a_session_of_its_own_is_left_alone(tmp_path: Path) -> None:
    run = adapted(tmp_path, str(EXAMPLES / "train_digits.py"), "--epochs", "1")
    assert "follows the policy" not in run.stderr()
    assert any("accuracy" in line for line in run.stdout(0))


def test_the_example_runs_as_it_is(tmp_path: Path) -> None:
    run = adapted(tmp_path, str(EXAMPLES / "train_ddp.py"), "--epochs", "2", policy="asp")
    assert [line.split(":")[0] for line in run.stdout(0)] == ["epoch 0", "epoch 1"]
    assert run.stderr().count("train_ddp.py:") == 4


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, str(SCRIPTS / "none.py"), ranks=1, stand_in=False)
    assert run.codes == [2]
    assert "cannot find the script" in run.stderr()
