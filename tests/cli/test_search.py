import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Call = Callable[..., Result]

JOB = """
[[devices]]
count = 3
compute_s = 0.1
bandwidth_gbps = 1.0

[network]
message_bytes = 2e6
server_gbps = 1.0

[training]
task = "digits"
epochs = 1
batch_size = 16
learning_rate = 0.05
momentum = 0.9
"""
SEARCH = ("--settings", "2", "--runs", "2", "--error-rate", "0.5", "--beta", "0.02")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("POLYRHYTHM_STORE", str(tmp_path / "store" / "searches.db"))
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def test_a_job_is_searched_and_answered_at_once_when_it_recurs(call: Call, job: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    first = call("search", job, *SEARCH, "--json", path)
    assert first.exit_code == 0, first.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(first.stderr.splitlines()) == len(found["trials"]) <= 6
    assert f"answer   {found['answer']['spec']}" in first.stdout
    assert found["spent_s"] == pytest.approx(sum(trial["spent_s"] for trial in found["trials"]))
    assert found["share_of_algorithm_1"] < 1
    again = call("search", job, *SEARCH)
    assert again.stderr == ""
    assert again.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]
    assert f"{len(found['trials'])} of them from the store" in again.stdout


def test_another_job_is_not_the_same(call: Call, job: str) -> None:
    assert call("search", job, *SEARCH, "--settings", "1").exit_code == 0
    other = call("search", job, *SEARCH, "--settings", "1", "--set", "training.learning_rate=0.04")
    assert "0 of them from the store" in other.stdout
    renamed = call("search", job, *SEARCH, "--settings", "1", "--set", "name=x")
    assert "0 of them from the store" not in renamed.stdout


def test_another_rule_in_the_same_file_is_not_the_same(call: Call, job: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from polyrhythm.policies import LocalSGD\n\nclass Mine(LocalSGD): ...\n", encoding="utf-8")
    options = ("--policy", f"{mine}:Mine:{{}}", *("--from", "1", "--to", "4", "--whole", "--baseline", "bsp"))
    first = call("search", job, *SEARCH, "--settings", "1", *options)
    assert first.exit_code == 0, first.stderr
    mine.write_text("from polyrhythm.policies import LocalSGD\n\nclass Mine(LocalSGD): pass\n", encoding="utf-8")
    other = call("search", job, *SEARCH, "--settings", "1", *options)
    assert "0 of them from the store" in other.stdout
    assert "0 of them from the store" not in call("search", job, *SEARCH, "--settings", "1", *options).stdout


def test_other_knobs_are_searched_in_the_same_way(call: Call, job: str) -> None:
    options = ("--policy", "local:{}", "--from", "1", "--to", "16", "--log", "--whole", "--baseline", "bsp")
    done = call("search", job, *SEARCH, *options)
    assert done.exit_code == 0, done.stderr
    assert "runs of bsp" in done.stdout
    assert "local:4: " in done.stdout


def test_algorithm_1_shares_nothing_and_stops_nothing(call: Call, job: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert call("search", job, *SEARCH, "--algorithm-1", "--json", path).exit_code == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert all(trial["spent_s"] == trial["time_s"] for trial in found["trials"])
    assert found["share_of_algorithm_1"] == pytest.approx(1.0)
    assert (found["plan"]["two_sided"], found["plan"]["early"]) == (True, 0.0)


def test_no_process_is_started_without_a_run(call: Call, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrhythm.search.runners import SerialRunner

    asked: list[int] = []

    def one_by_one(build: Any, slots: int) -> Any:
        asked.append(slots)
        return nullcontext(SerialRunner(build()))

    monkeypatch.setattr("polyrhythm.search.runners.Processes", one_by_one)
    assert call("search", job, *SEARCH, "--jobs", "500", "--baseline-runs", "3").exit_code == 0
    assert asked == [3]


def heed_ctrl_c() -> None:
    """Also where the tests themselves run in a driver's background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "how", "status", "words"),
    [
        (signal.SIGINT, "interrupted", 130, ()),
        (signal.SIGINT, "interrupted", 130, ("--jobs", "2")),
        (signal.SIGTERM, "ended by SIGTERM", 143, ("--jobs", "2")),
    ],
)
def test_a_signal_keeps_what_has_finished(job: str, words: Sequence[str], number: int, how: str, status: int) -> None:
    command = [sys.executable, "-m", "polyrhythm", "search", job, *SEARCH, "--settings", "5", "--runs", "9", *words]
    child = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=heed_ctrl_c
    )
    assert child.stderr is not None
    assert "accuracy" in child.stderr.readline()
    child.send_signal(number)
    rest = child.stderr.read().splitlines()  # to its end: no process that could write there is left
    assert child.wait(60) == status
    assert rest[-1].startswith(f"polyrhythm: {how}: finished trials are in")
    assert all("accuracy" in line for line in rest[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "switch:bsp@0.5,asp"], "--policy must have {} once"),
        (["--policy", "swich:bsp@{},asp"], "unknown policy 'swich': did you mean switch"),
        (["--from", "0"], "must be two different finite numbers"),
        (["--policy", "local:{}", "--to", "64.5", "--whole"], "--whole needs whole ends but got --from 1 --to 64.5"),
        (["--policy", "local:{}"], "'local:0.5': h must be a whole number but got '0.5'; --whole tries whole numbers"),
        (["--policy", "local:{}", "--whole"], "h must be a whole number of at least 1 but got 0\n"),
        (["--time-scale", "2"], "--time-scale is for real workers, as with --on local; leave it out"),
        (["--algorithm-1", "--error-rate", "0.2"], "--error-rate is set by --algorithm-1; leave it out"),
        (["--policy", "fedavg:{}", "--from", "0.5", "--to", "2"], "at most 1 but got 1.25\n"),
        (["--target", "0.9", "--baseline", "asp"], "--baseline is of the runs that --target takes the place of"),
        (["--target", "0.9", "--baseline-runs", "2"], "--baseline-runs is of the runs that --target takes the place"),
        (["--runs", "1"], "--runs 1 shows no spread"),
        (["--set", "training=none"], "the scenario has no training table"),
        (["--on", "local", "--jobs", "2"], "--jobs 2 is for simulated trials"),
        (["--on", "local", "--time-scale", "nan"], "--time-scale must be a finite number above 0 but got nan"),
        (["--on", "local", "--set", "limits.time_s=3"], "take the limits away"),
        (["--store", "/dev/null/x.db"], "cannot be made"),
    ],
)
def test_mistakes_are_one_line_and_nothing_runs(call: Call, job: str, options: list[str], message: str) -> None:
    done = call("search", job, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_a_search_with_what_is_known(
    call: Call, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyrhythm.search.runners import SerialRunner

    run = SerialRunner.run
    made: list[object] = []

    def interrupted(self: SerialRunner, trials: Any) -> Any:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.extend(trials)
        return run(self, trials)

    monkeypatch.setattr(SerialRunner, "run", interrupted)
    path = tmp_path / "found.json"
    result = call("search", job, *SEARCH, "--json", path)
    assert result.exit_code == 130
    assert "so far   switch:bsp@1,asp" in result.stdout
    assert "the same command goes on with them" in result.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["done"], len(found["trials"])) == (False, 3)
    monkeypatch.setattr(SerialRunner, "run", run)
    again = call("search", job, *SEARCH)
    assert again.exit_code == 0
    assert "3 of them from the store" in again.stdout
