"""The benchmark of the language model runs whole on two hosts, keeps what it has run, and draws it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parents[2] / "benchmarks" / "language_model.py")


def play(folder: Path) -> str:
    command = [sys.executable, SCRIPT, str(folder), "--quick", "--figure", str(folder / "figure.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tiny_model_is_run_once_and_simulated(tmp_path: Path) -> None:
    first = play(tmp_path)
    kept = {path.name: json.loads(path.read_bytes()) for path in tmp_path.glob("*.json")}
    names = ["calibration-1000-bsp", "calibration-1000-local4", "calibration-1000-no-exchange", "run-200-diloco16"]
    assert sorted(kept) == [f"{name}.json" for name in names]
    run = kept["run-200-diloco16.json"]
    assert [step for step, _ in run["perplexities"]] == [1, 9, 17, 25, 33]
    assert run["marks"][-1]["sent"] - run["marks"][0]["sent"] >= 2 * 4 * run["parameters"]
    assert "diloco:16" in (tmp_path / "figure.svg").read_text()
    again = play(tmp_path)
    assert "steps" in first.splitlines()[0]
    assert first.splitlines()[4:] == again.splitlines()
