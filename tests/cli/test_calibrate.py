"""``polyrhythm calibrate``: real processes are measured, and the simulator is held against them."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Scenario, TimingWorkload, load_scenario, simulate
from polyrhythm.sim.cluster.calibration import Costs

Call = Callable[..., Result]

TINY = """
[[devices]]
count = 1
compute_s = 0.002

[[devices]]
count = 1
compute_s = 0.004
bandwidth_gbps = 1.0

[[faults.stragglers]]
workers = [1]
start_s = 1e6
slowdown = 2

[training]
task = "digits"
train_samples = 64
test_samples = 50
batch_size = 8
epochs = 1
learning_rate = 0.05
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


def test_costs_are_measured_written_and_held_against_real_runs(call: Call, tiny: str, tmp_path: Path) -> None:
    out, results, page = tmp_path / "made.toml", tmp_path / "out.json", tmp_path / "out.html"
    outputs = ["--out", out, "--json", results, "--report", page]
    done = call("calibrate", tiny, "--policies", "asp", *outputs)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "largest error" in done.stdout
    made = load_scenario(str(out))
    assert made.compute.measured_s is not None
    assert all(max(times) >= least for times, least in zip(made.compute.measured_s, (0.002, 0.004), strict=True))
    assert made.network.message_bytes == 19_240
    assert made.devices[1].bandwidth_gbps >= 1.0
    assert made.faults == load_scenario(tiny).faults
    written = json.loads(results.read_text(encoding="utf-8"))
    assert [pair["policy"] for pair in written["agreement"]] == ["asp"]
    assert [(run["where"], run["samples"]) for run in (*written["real"], *written["simulated"])] == [
        ("local", 64),
        ("simulated", 64),
    ]
    assert "Simulated against real" in page.read_text(encoding="utf-8")


def test_traces_of_jobs_elsewhere_are_read(call: Call, tiny: str, tmp_path: Path) -> None:
    for name, spec, factor in (("a", "local:8", 1.0), ("b", "bsp", 1.0), ("c", "asp", 1.5), ("short", "asp", 9.0)):
        workload = TimingWorkload(batch_size=8, samples=80 if name == "short" else 400)
        devices = [Device(compute_s=0.1 * factor), Device(compute_s=0.2 * factor)]
        simulate(Scenario(devices=devices, workload=workload), parse_policy(spec), trace=tmp_path / f"{name}.jsonl")
    out = tmp_path / "made.toml"
    done = call("calibrate", tiny, "--from", tmp_path, "--out", out, "--set", "training=none")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "server            not known: traces do not tell its processor time for a push" in done.stdout
    made = load_scenario(str(out))
    assert made.network.service_s == 0.0
    assert made.network.latency_s == pytest.approx((0.05 + 0.1) / 2 / 2, rel=0.2)
    for words, message in (
        (["--set", "devices.0.count=2"], "the trace under local:8 is of 2 workers, but the scenario has 3"),
        (["--policies", "bsp"], "give one of them"),
    ):
        assert message in call("calibrate", tiny, "--from", tmp_path, *words).stderr
    (tmp_path / "b.jsonl").unlink()
    assert "has no trace under bsp; keep one with run --trace" in call("calibrate", tiny, "--from", tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "training=none"], "trains a model, but the scenario has no training table"),
        (["--time-scale", "0"], "--time-scale must be a finite number above 0 but got 0"),
        (["--time-scale", "nan"], "--time-scale must be a finite number above 0 but got nan"),
        (["--set", "devices.0.count=100000"], "more than 32 processes for each of"),
        (["--from", "nothere"], "--from 'nothere' is no folder; give that of run --trace"),
        (
            ["--from", ".", "--epochs", "3"],
            "--epochs is for what is measured here, and --from reads traces",
        ),
        (["--policies", "apx"], "unknown policy 'apx'"),
        (["--out", "/dev/null/x.toml"], "--out '/dev/null/x.toml' cannot be written"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_runs(call: Call, tiny: str, words: list[str], message: str) -> None:
    done = call("calibrate", tiny, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_keeps_what_is_measured(call: Call, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrhythm.cli import calibrate

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    costs = Costs(
        compute_s=[[0.002, 0.002], [0.004, 0.004]],
        latency_s=1e-4,
        service_s=1e-5,
        averaging_s=1e-3,
        epoch_end_s=1e-3,
        message_bytes=1e3,
        bandwidths=[1e8, 1e8],
    )
    monkeypatch.setattr(calibrate, "measured", lambda wanted: costs)
    monkeypatch.setattr("polyrhythm.cli.local.compare_on_workers", stop)
    out = tmp_path / "calibrated.toml"
    result = call("calibrate", tiny, "--policies", "bsp", "--out", out)
    assert result.exit_code == 130
    assert "the costs are measured, and 0 real runs had finished" in result.stderr
    assert out.exists()
    monkeypatch.setattr(calibrate, "measured", stop)
    result = call("calibrate", tiny)
    assert (result.exit_code, result.stderr.count("\n")) == (130, 1)


def test_sigterm_while_it_measures_is_one_line(call: Call, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrhythm.cli import calibrate

    monkeypatch.setattr(calibrate, "measured", lambda wanted: signal.raise_signal(signal.SIGTERM))
    result = call("calibrate", tiny)
    assert (result.exit_code, result.stderr) == (
        143,
        "polyrhythm: ended by SIGTERM while it measured; nothing is known yet, and nothing is written\n",
    )
