"""``polyrhythm learn`` as a user calls it."""

import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.policies.rlp.network import load
from polyrhythm.rl import learn
from polyrhythm.rl.instances import FAMILIES, Family


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BATCH", 1), ("CHECK", 1), ("VALIDATION", 1)):
        monkeypatch.setattr(learn, name, value)
    tiny = Family("tiny", hidden=(0,), learning_rate=0.6, target=0.6, workers=(3,))
    monkeypatch.setitem(FAMILIES, "tiny", tiny)


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["learn", *words])
    return result.exit_code, result.output


def test_a_policy_is_learned_and_goes_on(tmp_path: Path) -> None:
    out, logs = tmp_path / "policy.json", tmp_path / "logs"
    words = (str(out), "--families", "tiny", "--pretraining", "1", "--jobs", "1", "--log", str(logs))
    code, said = call(*words, "--episodes", "1")
    assert code == 0, said
    assert "x as fast as ASP on jobs that it did not learn from" in said
    assert list(logs.glob("events*"))
    assert call(*words, "--episodes", "2", "--resume")[0] == 0
    assert dict(load(str(out)).training)["episodes"] == "2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--families", "tny"], "unknown family 'tny': did you mean tiny"),
        (["--data", "/nope"], "--data '/nope' is no folder; give the one with the data set's parquet files"),
        (["--data", __file__], "is no folder"),
        (["--data", ""], "--data '' is no folder"),
        (["--data", ".", "--families", "tiny"], "--data '.' is read by none of tiny; leave it out, or see --families"),
        (["--log", __file__], f"--log {__file__!r} cannot be made: File exists"),
        (["--resume"], "policy.json.checkpoint': No such file or directory; leave --resume out"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    code, said = call(str(tmp_path / "policy.json"), *words)
    assert (code, len(said.splitlines())) == (2, 1)
    assert message in said


def test_a_folder_where_checkpoints_would_go_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "policy.json.checkpoint").mkdir()
    code, said = call(str(tmp_path / "policy.json"), "--pretraining", "1", "--episodes", "0")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "policy.json.checkpoint' cannot be written: Is a directory" in said


def test_data_that_cannot_be_downloaded_are_one_line_before_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(repository: str, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    code, said = call(str(tmp_path / "policy.json"), "--families", "fashion")
    assert (code, said) == (
        2,
        "polyrhythm: fashion-mnist could not be downloaded (ConnectionError: no route); give --data (in Python, "
        "folder), a folder with its parquet files\n",
    )


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(study: learn.Study) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learn.Study, "run", stop)
    code, said = call(str(tmp_path / "policy.json"), "--families", "tiny", "--pretraining", "3")
    assert code == 130
    assert said == (
        "polyrhythm: interrupted after 0 of 3 jobs under fixed policies; nothing is kept yet, so the same command "
        "begins anew\n"
    )
    assert not (tmp_path / "policy.json").exists()


def test_sigterm_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(learn.Study, "run", lambda study: signal.raise_signal(signal.SIGTERM))
    code, said = call(str(tmp_path / "policy.json"), "--families", "tiny", "--pretraining", "3")
    assert (code, said) == (
        143,
        "polyrhythm: ended by SIGTERM after 0 of 3 jobs under fixed policies; nothing is kept yet, so the same command "
        "begins anew\n",
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_after_a_checkpoint_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(study: learn.Study, done: int, total: int) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "policy.json"
    words = (str(out), "--families", "tiny", "--pretraining", "2", "--episodes", "1", "--jobs", "1")
    monkeypatch.setattr("polyrhythm.cli.learn.StudyTeller.progress", stop)
    code, said = call(*words)
    going_on = f"of 2 jobs under fixed policies; --resume goes on from '{out}.checkpoint'"
    assert (code, said) == (130, f"polyrhythm: interrupted after 1 {going_on}\n")
    monkeypatch.setattr(learn.Study, "run", lambda study: study.tell(1, 2))
    code, said = call(*words, "--resume")
    assert (code, said) == (130, f"polyrhythm: interrupted after 1 {going_on}\n")


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(study: learn.Study, until: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learn.Study, "_explore", stop)
    out = tmp_path / "policy.json"
    code, said = call(str(out), "--families", "tiny", "--pretraining", "1", "--episodes", "1", "--jobs", "1")
    assert code == 130, said
    assert f"x as fast as ASP, is in {str(out)!r}" in said
    assert dict(load(str(out)).training)["episodes"] == "0"
