"""Scripts that start a process for each rank by themselves."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, try_adapted


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_processes_that_a_script_spawns_are_the_workers(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "spawned.py", "2", policy=policy)
    first, second = ((tmp_path / f"weights.{rank}").read_text("utf-8") for rank in run.ranks)
    assert first == second
    assert "the 2 processes of multiprocessing.spawn are the workers of the job" in run.stderr()
    assert run.stdout(0) == ["all are done"]


def test_another_number_of_them_is_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "spawned.py", "3", ranks=1)
    assert run.codes == [2]
    assert "spawn starts 3 processes, but the job has 1 workers on this host" in run.stderr()
