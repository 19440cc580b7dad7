"""Processes that a script starts by itself must not train: nobody would tell them of the policy."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, try_adapted
from tests.runtime.script.test_refusals import line_of


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_script_that_trains_in_processes_of_its_own_is_refused(tmp_path: Path, method: str) -> None:
    run = try_adapted(tmp_path, "hogwild.py", method, "train", ranks=1, stand_in=False)
    assert run.codes == [2]
    line = line_of("child.start()", "hogwild.py")
    assert f"hogwild.py:{line}: processes of the script's own follow no policy" in run.stderr()
    assert "Traceback" not in run.stderr()
    assert not list(tmp_path.glob("trained.*"))


def test_a_script_whose_processes_are_all_that_it_runs_is_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "hogwild.py", "fork", "idle", stand_in=False)
    assert run.codes == [2, 2]


def test_processes_that_do_not_train_are_left_alone(tmp_path: Path) -> None:
    run = adapted(tmp_path, "hogwild.py", "fork", "idle+train", stand_in=False)
    assert "SGD.step follows the policy" in run.stderr()


def test_a_script_that_trains_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("print('nothing')")
    run = adapted(tmp_path, str(tmp_path / "nothing.py"), stand_in=False)
    assert "the script has ended and trained nothing" in run.stderr()
