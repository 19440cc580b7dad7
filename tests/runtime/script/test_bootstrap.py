"""Scripts that are left alone, and scripts that end in other ways."""

import signal
from pathlib import Path

import pytest

from polyrhythm.errors import JobError, UsageError
from polyrhythm.lines import SAID
from polyrhythm.runtime.coordinator.connections import log_end
from polyrhythm.runtime.script.bootstrap import check_module, execute, say_once, within_launcher
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


def test_a_module_that_is_not_in_its_package() -> None:
    for module in ("email.none", "email.none.deeper"):
        with pytest.raises(UsageError, match=f"cannot find the module {module}"):
            check_module(module)


def test_a_package_that_misses_another_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        check_module("lacking.train")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["launch", "--nproc_per_node=2", "--use_env", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["launch", "--nproc-per-node", "2", "-m", "train"], ["-m", "train", "--local-rank=1"]),
        (["run", "--standalone", "train.py"], ["train.py"]),
    ],
)
def test_workers_are_there_already_for_a_launcher_of_torchs(
    monkeypatch: pytest.MonkeyPatch, given: list[str], found: list[str]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert within_launcher(["-m", f"torch.distributed.{given[0]}", *given[1:]]) == found


def test_another_number_of_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(UsageError, match=r"starts 4 workers a host, but the job has 1; .*--nproc-per-node 4"):
        within_launcher(["-m", "torch.distributed.launch", "--nproc-per-node", "4", "train.py"])


def test_ctrl_c_in_code_that_torch_calls_is_ctrl_c_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('raise RuntimeError("Cannot extract tensors from value: KeyboardInterrupt: <EMPTY MESSAGE>")')
    run = try_adapted(tmp_path, str(script), ranks=1, stand_in=False)
    assert run.codes == [128 + signal.SIGINT]
    assert "Traceback" not in run.stderr()


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder without a __main__\.py; name a script"):
        execute([str(tmp_path)])


def test_what_the_coordinator_has_said_no_worker_of_its_host_says_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a second worker of another host, whose line has another rank in it."""
    (tmp_path / "said").touch()
    monkeypatch.setenv(SAID, str(tmp_path / "said"))
    log_end("all hosts are apart")
    for rank, reason in enumerate(("all hosts are apart", "a host is apart", "a host is apart", "")):
        error = JobError(f"server 0 refused rank {rank}: {reason}")
        error.reason = reason
        say_once(error)
    assert capsys.readouterr().err.splitlines() == [
        "polyrhythm: rank 0: server 0 refused rank 1: a host is apart",
        "polyrhythm: rank 0: server 0 refused rank 3: ",
    ]
