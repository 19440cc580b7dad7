"""``compare --on local``: real processes behind the same table."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polyrhythm.cli.local import emulations, not_played
from polyrhythm.core import Trace
from polyrhythm.sim import Faults, Leave, Network, Straggler, load_scenario

Call = Callable[..., Result]

TINY = """
[[devices]]
count = 1
compute_s = 0.02

[[devices]]
count = 1
compute_s = 0.04

[training]
task = "digits"
train_samples = 64
test_samples = 50
batch_size = 8
epochs = 2
learning_rate = 0.05
target_accuracy = 0.01
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Two workers with so little to do that starting them takes longest."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


def test_real_workers_fill_the_table_the_results_and_the_page(call: Call, tiny: str, tmp_path: Path) -> None:
    results, page, traces = tmp_path / "out.json", tmp_path / "out.html", tmp_path / "traces"
    outputs = ["--json", results, "--report", page, "--trace", traces]
    done = call("compare", tiny, "--on", "local", "--time-scale", 0.1, "--policies", "bsp,asp", *outputs)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "2 real workers on this host (delays and bandwidth_gbps are emulated)" in done.stdout
    runs = json.loads(results.read_text(encoding="utf-8"))["results"]
    assert [(run["policy"], run["where"], run["status"]) for run in runs] == [
        ("bsp", "local", "ok"),
        ("asp", "local", "ok"),
    ]
    for run in runs:
        check_accounts(run)
    assert [run["updates"] for run in runs] == [8, 16]
    assert {Trace.load(file).header.policy for file in traces.iterdir()} == {"bsp", "asp"}
    assert 'id="timeline"' in page.read_text(encoding="utf-8")


def check_accounts(run: dict[str, float]) -> None:
    """Every sample once, every gradient used, and the time that workers were live divided up."""
    assert (run["samples"], run["steps"]) == (128, 16)
    assert (run["gradients_computed"], run["gradients_applied"], run["gradients_dropped"]) == (16, 16, 0)
    assert run["compute_fraction"] + run["transfer_fraction"] + run["idle_fraction"] == pytest.approx(1.0)
    assert 0 < run["time_to_target_s"] <= run["duration_s"]
    assert run["bytes_total"] > 0


def test_a_policy_that_cannot_run_is_one_line(call: Call, tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(REPLICATED, encoding="utf-8")
    done = call("compare", tiny, "--on", "local", "--policies", f"{file}:Mine")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "cannot run on real workers: every_rank decisions" in done.stderr


REPLICATED = """
from typing import ClassVar

from polyrhythm.core import Traits
from polyrhythm.policies import ASP


class Mine(ASP):
    traits: ClassVar[Traits] = Traits("every_rank")
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timing-only"], "--on local trains a model, but the scenario has no training table; give it one"),
        (["--jobs", "2"], "--jobs 2 is for simulated runs; real ones go one by one, leave it out"),
        (["--time-scale", "0"], "--time-scale must be a finite number above 0 but got 0"),
        (["--time-scale", "nan"], "--time-scale must be a finite number above 0 but got nan"),
        (["--time-scale", "inf"], "--time-scale must be a finite number above 0 but got inf"),
        (["--set", "devices.0.count=100000"], "--on local starts 100001 workers, more than 32 processes for each of"),
        (["--set", "limits.time_s=3"], "take the limits away"),
        (["--set", "faults.joins=[{worker=1, time_s=1}]"], "--on local cannot let workers join later"),
        (["--set", "faults.random_leaves=[{workers=1, to_s=1, back_after_s=1}]"], "cannot let workers join later"),
    ],
)
def test_what_has_no_counterpart_is_one_line_and_nothing_runs(
    call: Call, tiny: str, words: list[str], message: str
) -> None:
    done = call("compare", tiny, "--on", "local", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_workers_play_what_the_simulator_draws(tiny: str) -> None:
    scenario = load_scenario(tiny)
    faults = Faults(
        stragglers=[
            Straggler(workers=[1], start_s=2.0, duration_s=3.0, slowdown=4.0, extra_compute_s=0.5, extra_latency_s=0.25)
        ],
        leaves=[Leave(worker=0, time_s=8.0, reason="hung"), Leave(worker=1, step=7)],
    )
    late = type(scenario)(devices=scenario.devices, faults=faults, network=Network(latency_s=0.01))
    first, second = emulations(late, 0, 3, time_scale=0.5)
    assert first.latency_s == second.latency_s == 0.005
    assert (first.step_s, second.step_s) == ([0.01] * 3, [0.02] * 3)
    assert first.slow == ()
    (slow,) = second.slow
    assert (slow.start, slow.stop, slow.slowdown, slow.extra_s) == (1.0, 2.5, 4.0, 0.25)
    assert slow.extra_latency_s == 0.125
    (line,) = not_played(late, ["asp", "bsp", "elastic:(switch:bsp@0.5,asp)", "local:8"])
    assert line.startswith("network.latency_s and extra_latency_s are not played under bsp, local:8, whose")
    assert not_played(late, ["asp"]) == not_played(scenario, ["bsp"]) == []
    assert [(death.signal, death.time_s) for death in first.deaths] == [(signal.SIGSTOP, 4.0)]
    assert [(death.signal, death.step) for death in second.deaths] == [(signal.SIGKILL, 7)]
