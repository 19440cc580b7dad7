import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polyrhythm.sim import Compute, Device, Scenario, TimingWorkload, simulate
from tests.doctor.pipelines import Pipeline

Call = Callable[..., Result]


@pytest.fixture
def call() -> Call:
    """Run a command in this process."""
    from typer.testing import CliRunner

    from polyrhythm.cli.app import app

    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Of a simulated job whose third worker is slow."""
    folder = tmp_path / "traces"
    folder.mkdir()
    scenario = Scenario(
        devices=[Device(count=2, compute_s=0.1), Device(compute_s=0.2)],
        compute=Compute(distribution="normal", deviation=0.02),
        workload=TimingWorkload(batch_size=4, samples=480),
    )
    simulate(scenario, "bsp", trace=folder / "bsp.jsonl")
    return folder


def test_the_answer_stands_in_its_order(call: Call, traces: Path) -> None:
    done = call("doctor", traces, "--policies", "bsp,asp")
    assert done.exit_code == 0
    places = [
        done.stdout.index(text)
        for text in ("Rank 2 is slow in computing", "rank 2: computing", "Next: ", "CHOSEN", "what if", "steps ")
    ]
    assert places == sorted(places)


def test_json_is_the_whole_answer_and_nothing_else(call: Call, traces: Path) -> None:
    done = call("doctor", traces, "--json", "--policies", "bsp,asp")
    answer = json.loads(done.stdout)
    assert answer["culprits"][0]["rank"] == 2
    assert [row["policy"] for row in answer["prospects"]] == ["bsp", "asp"]
    assert sum(row["chosen"] for row in answer["prospects"]) == 1


def test_the_page_has_the_verdict_and_the_table(call: Call, traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "answer.html"
    assert call("doctor", traces, "--policies", "bsp,asp", "--report", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "Rank 2 is slow in computing" in text
    assert "CHOSEN" in text


def test_a_trace_of_stages_is_answered_by_the_same_command(call: Call, tmp_path: Path) -> None:
    done = call("doctor", Pipeline().save(tmp_path), "--policies", "bsp")
    assert done.exit_code == 0
    assert "No rank or stage is slow" in done.stdout


def test_a_command_is_watched_and_what_was_seen_can_be_read_again(call: Call, tmp_path: Path) -> None:
    script = str(Path(__file__).parents[3] / "benchmarks" / "_slow_rank.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shown = ["--policies", "bsp", "--json"]
    done = call("doctor", *shown, "--keep", tmp_path, "--", *launcher, script, "--steps", "40", "--step-ms", "2")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(call("doctor", *shown, tmp_path).stdout)
    assert answer["facts"]["read"].endswith("2 ranks watched")
    assert answer["facts"]["steps"].startswith("37, ")
    assert json.loads(done.stdout) == answer


def test_a_command_without_ranks_leaves_nothing_to_read(call: Call) -> None:
    done = call("doctor", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert done.exit_code == 2
    assert done.stderr == (
        "polyrhythm: the command ended with exit code 3 before a rank of it had joined a process group of at least 2\n"
    )
    done = call("doctor", "--", sys.executable, "-c", "")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "has joined a process group of at least 2 under watch" in done.stderr


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no trace; give a folder with traces of polyrhythm run"),
        ({"a.jsonl": "", "b.ring": ""}, r"has traces of 2 kinds (*.ring, *.jsonl); give one kind"),
        ({"a.jsonl": "", "rank0.json": '{"schemaVersion": 1}'}, "has traces of 2 kinds (*.jsonl, *.json)"),
        ({"a.jsonl": ""}, "not JSON"),
        ({"a.jsonl": "{}\n"}, "format must be 1 but got None; is this a trace?"),
        ({"rank0.json": "{"}, "is no whole file of torch.profiler"),
        ({"trace.json": '{"traceEvents": []}'}, "does not say its rank"),
        ({"a.ring": "no"}, "is no file of the watcher"),
        ({"trace-a.parquet": ""}, "was it cut off?"),
        (
            {"trace-a.parquet": "", "trace-b.parquet": ""},
            "has 2 jobs (trace-a.parquet, trace-b.parquet); name the file",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(call: Call, tmp_path: Path, files: dict[str, str], message: str) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = call("doctor", folder)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "doctor needs traces, a job or a command"),
        (["nowhere"], "there is no 'nowhere'; give a folder"),
        (["here", "--", "torchrun"], "got traces 'here' and a command after --; give one of them"),
        (["run", "--job", "x"], "doctor looks at one thing but got traces 'run' and --job x; give one of them"),
        (["here", "--seconds", "5"], "--seconds goes with --job; leave it out"),
        (["--job", "no/job"], "JOB"),
        (["nowhere", "--policies", "bps"], "unknown policy 'bps': did you mean bsp?"),
        (["--"], "there is no command after --"),
        (["nowhere", "--keep", "kept"], "--keep 'kept' goes with a command"),
    ],
)
def test_mistakes_in_the_call_are_one_line(call: Call, arguments: list[str], message: str) -> None:
    done = call("doctor", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
