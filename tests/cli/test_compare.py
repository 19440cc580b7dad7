import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

from polyrhythm.core import Trace
from polyrhythm.sim import Scenario, load_scenario
from polyrhythm.telemetry.result import RunResult

Call = Callable[..., Result]


def table(shown: str) -> list[list[str]]:
    """Words of the lines below the policy of the table."""
    lines = shown.splitlines()
    policy = next(number for number, line in enumerate(lines) if line.strip().startswith("──"))
    return [line.split() for line in lines[policy + 1 :] if line.strip()]


def test_the_table_says_the_conditions_and_ranks(call: Call, training: str) -> None:
    done = call("compare", training, "--policies", "bsp,asp", "--seeds", 2, "--jobs", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "train\n" in done.stdout
    assert "0, 1" in done.stdout
    assert (
        "linear: 0.05 for one mini-batch, m x 0.05 for an update that averages m gradients (all 3: 0.15)" in done.stdout
    )
    ranked = table(done.stdout)
    assert {row[0] for row in ranked} == {"bsp", "asp"}
    assert [float(row[1]) for row in ranked] == sorted(float(row[1]) for row in ranked)
    assert next(row for row in ranked if row[0] == "bsp")[2] == "1.00x"
    assert all("±" in row for row in ranked)


def test_json_has_one_object_a_policy_and_seed(call: Call, training: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ["compare", training, "--policies", "bsp,ssp:s=1", "--seeds", 2, "--json", path, "--jobs", 1]
    assert call(*words).exit_code == 0
    value = json.loads(path.read_text(encoding="utf-8"))
    assert list(value) == ["command", "version", "scenario", "results"]
    assert value["command"] == f"polyrhythm compare {training} --policies bsp,ssp:s=1 --seeds 2 --json {path} --jobs 1"
    assert value["scenario"]["devices"][1]["compute_s"] == 0.3
    assert [(run["policy"], run["seed"]) for run in value["results"]] == [
        ("bsp", 0),
        ("bsp", 1),
        ("ssp:1", 0),
        ("ssp:1", 1),
    ]
    for run in value["results"]:
        assert set(run) == {field.name for field in msgspec.structs.fields(RunResult)}
        assert run["time_to_target_s"] > 0
        assert run["trace_path"] is None


def test_the_report_holds_the_timelines_of_the_first_seed(call: Call, timing: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    done = call("compare", timing, "--policies", "bsp,asp", "--seeds", 2, "--report", path, "--jobs", 1)
    assert done.exit_code == 0, done.stderr
    page = path.read_text(encoding="utf-8")
    assert 'id="timeline"' in page
    assert "The whole run of the first seed." in page
    assert "message_bytes" in page
    assert {file.name for file in tmp_path.iterdir()} == {"report.html", "three.toml"}


def test_traces_are_kept_when_asked_for(call: Call, timing: str, tmp_path: Path) -> None:
    folder, path = tmp_path / "traces", tmp_path / "out.json"
    words = ["compare", timing, "--policies", "bsp,asp", "--seeds", 2, "--trace", folder, "--json", path, "--jobs", 1]
    assert call(*words).exit_code == 0
    named = {run["trace_path"] for run in json.loads(path.read_text(encoding="utf-8"))["results"]}
    assert named == {str(file) for file in folder.iterdir()}
    assert {Trace.load(file).header.policy for file in folder.iterdir()} == {"bsp", "asp"}


def test_without_a_target_the_duration_ranks(call: Call, timing: str) -> None:
    done = call("compare", timing, "--policies", "bsp,asp", "--jobs", 1)
    assert done.exit_code == 0
    assert "none; ranked by duration" in done.stdout
    assert [row[0] for row in table(done.stdout)] == ["asp", "bsp"]
    assert "timing only" in done.stdout


def test_timing_only_trains_nothing(call: Call, training: str) -> None:
    done = call("compare", training, "--policies", "bsp", "--timing-only", "--jobs", 1)
    assert done.exit_code == 0, done.stderr
    assert "timing only" in done.stdout


def test_a_target_of_the_command_goes_before_that_of_the_scenario(call: Call, training: str) -> None:
    done = call("compare", training, "--policies", "bsp", "--target", 1.0, "--jobs", 1)
    assert "test accuracy 1\n" in done.stdout
    assert table(done.stdout)[0][1] == "never"


def test_show_prints_the_scenario_in_force_and_runs_nothing(call: Call, training: str, tmp_path: Path) -> None:
    done = call("compare", training, "--set", "training.learning_rate=0.01", "--set", "name=mine", "--show")
    assert done.exit_code == 0
    path = tmp_path / "again.toml"
    path.write_text(done.stdout, encoding="utf-8")
    again: Scenario = load_scenario(str(path))
    assert again == load_scenario(training, {"training.learning_rate": "0.01", "name": "mine"})
    assert again.training is not None
    assert again.training.learning_rate == 0.01


def test_a_diverging_run_is_one_line_and_the_others_are_kept(call: Call, training: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ["--set", "training.learning_rate=1e30", "--policies", "bsp,asp", "--json", path, "--jobs", 1]
    done = call("compare", training, *words)
    assert done.exit_code == 1
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == ["bsp, seed 0", "asp, seed 0"]
    assert "diverged" in done.stderr
    assert len(json.loads(path.read_text(encoding="utf-8"))["results"]) == 2


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar

from polyrhythm.policies import ASP


@dataclass(frozen=True)
class Broken(ASP):
    summary: ClassVar[str] = "fails at the second step"

    def decide(self, state, event):
        if getattr(event, "clock", 0) > 1:
            raise RuntimeError("out of ideas")
        return super().decide(state, event)
"""


def test_a_failing_policy_is_one_line_and_the_others_are_kept(call: Call, timing: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN, encoding="utf-8")
    done = call("compare", timing, "--policies", f"{file}:Broken,bsp", "--jobs", 1)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "out of ideas" in done.stderr
    assert [row[0] for row in table(done.stdout)] == ["bsp", f"{file}:Broken"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "scenario 'nowhere' is neither a file nor built in"),
        (["unifrom"], "did you mean uniform?"),
        (["missing.toml"], "missing.toml"),
        (["uniform", "--policies", "spp:3"], "unknown policy 'spp': did you mean ssp?"),
        (["uniform", "--policies", "ssp:-1"], "s must be a whole number"),
        (["uniform", "--policies", "bsp,,asp"], "has an empty part"),
        (["uniform", "--set", "workers"], "--set needs KEY=VALUE but got 'workers'"),
        (["uniform", "--set", "=3"], "--set needs KEY=VALUE but got '=3'"),
        (["uniform", "--set", "training.learning_rat=3"], "learning_rate"),
        (["uniform", "--timing-only", "--target", "0.9"], "--target 0.9 needs a model, and --timing-only trains none"),
        (["uniform", "--timing-only", "--set", "training.epochs=x"], "--set training.epochs says how to train, and"),
        (["uniform", "--set", "workload.samples=640"], "--set workload.samples is for runs without training, and"),
        (["uniform", "--time-scale", "2"], "--time-scale is for real workers, as with --on local; leave it out"),
        (["uniform", "--set", "training.data=x"], "training.data 'x' is not read by task digits"),
        (["uniform", "--set", "training.tokens=word"], "training.tokens 'word' goes with task text, not digits"),
        (["uniform", "--set", "training.optimizer=Adm"], "unknown optimizer 'Adm': did you mean Adam?"),
        (["uniform", "--json", "/"], "--json '/' cannot be written"),
        (["uniform", "--report", "/proc/x/y.html"], "--report '/proc/x/y.html' cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_nothing_runs(call: Call, words: list[str], message: str) -> None:
    done = call("compare", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        *(["uniform", "--seeds", number] for number in ("0", "1000000000")),
        ["uniform", "--target", "95"],
        ["uniform", "--sedes", "2"],
        [],
        ["a", "b"],
    ],
)
def test_mistakes_in_options_are_usage_errors(call: Call, words: list[str]) -> None:
    done = call("compare", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("polyrhythm: ")


INTERRUPTING = """
from polyrhythm.policies import ASP


class Interrupting(ASP):
    def decide(self, state, event):
        raise KeyboardInterrupt
"""


def test_ctrl_c_keeps_what_has_finished(call: Call, timing: str, tmp_path: Path) -> None:
    file, path = tmp_path / "mine.py", tmp_path / "out.json"
    file.write_text(INTERRUPTING, encoding="utf-8")
    done = call("compare", timing, "--policies", f"bsp,{file}:Interrupting,asp", "--json", path, "--jobs", 1)
    assert (done.exit_code, done.stderr) == (130, "polyrhythm: interrupted: 1 of 3 runs had finished\n")
    assert [row[0] for row in table(done.stdout)] == ["bsp"]
    assert [run["policy"] for run in json.loads(path.read_text(encoding="utf-8"))["results"]] == ["bsp"]


def test_a_broken_file_of_the_data_is_told_once_and_nothing_runs(call: Call, training: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    broken = tmp_path / "data" / "train.parquet"
    broken.write_bytes(b"PAR0")
    sets = ("--set", "training.task=fashion-mnist", "--set", f"training.data={broken.parent}")
    for command in (("compare", training, "--policies", "bsp,asp"), ("search", training, "--jobs", "2")):
        done = call(*command, *sets)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"polyrhythm: {broken}: not a parquet file that can be read")


TERMINATING = """
import signal

from polyrhythm.policies import ASP


class Terminating(ASP):
    def decide(self, state, event):
        signal.raise_signal(signal.SIGTERM)
"""


def test_sigterm_keeps_what_has_finished(call: Call, timing: str, tmp_path: Path) -> None:
    file, path = tmp_path / "mine.py", tmp_path / "out.json"
    file.write_text(TERMINATING, encoding="utf-8")
    done = call("compare", timing, "--policies", f"bsp,{file}:Terminating,asp", "--json", path, "--jobs", 1)
    assert (done.exit_code, done.stderr) == (143, "polyrhythm: ended by SIGTERM: 1 of 3 runs had finished\n")
    assert [run["policy"] for run in json.loads(path.read_text(encoding="utf-8"))["results"]] == ["bsp"]


def test_ctrl_c_before_anything_has_finished(call: Call, timing: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(INTERRUPTING, encoding="utf-8")
    done = call("simulate", timing, "--policy", f"{file}:Interrupting")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr == "polyrhythm: interrupted: 0 of 1 runs had finished\n"


def test_several_processes_give_the_same_results_with_a_policy_of_the_users(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["compare", timing, "--policies", "bsp,./mine.py:Mine", "--seeds", "2"]
    shown = []
    for jobs in ("1", "2"):
        command = [sys.executable, "-m", "polyrhythm", *words, "--jobs", jobs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert "./mine.py:Mine" in shown[0]


MINE = """
from polyrhythm.policies import ASP


class Mine(ASP):
    pass
"""


@pytest.mark.parametrize("spec", ["selsync:0", "switch:bsp@0.5,(selsync:0)"])
def test_a_policy_that_reads_gradients_is_refused_where_there_are_none(call: Call, timing: str, spec: str) -> None:
    done = call("compare", timing, "--policies", f"bsp,{spec}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "decides from the norms of gradients, and this run trains nothing" in done.stderr


def test_a_share_of_local_steps_needs_no_gradients(call: Call, timing: str) -> None:
    assert call("simulate", timing, "--policy", "selsync:lssr=0.8").exit_code == 0


def test_a_target_without_a_model_is_a_mistake(call: Call, timing: str) -> None:
    done = call("compare", timing, "--target", 0.9)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "polyrhythm: --target 0.9 needs a model, but the scenario has no training table\n"
