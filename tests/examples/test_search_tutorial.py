"""The tutorial of docs/guides/search.md on real workers: searched, killed, resumed, switched live, run again."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parents[2] / "examples" / "train_digits.py")
JOB = ["--nproc-per-node", "2", "--epochs", "2", "--policy", "sync-switch"]
SEARCH = ["--search", "--settings", "1", "--runs", "1", "--error-rate", "0.5", "--beta", "0.1"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "POLYRHYTHM_STORE": str(tmp_path / "searches.db")}


def start(environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "polyrhythm", "run", *options, *JOB, SCRIPT, "--epochs", "2", "--seed", "{run}"]
    return subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(child: "subprocess.Popen[str]", words: str) -> list[str]:
    """Lines of stderr up to one with these words."""
    assert child.stderr is not None
    lines: list[str] = []
    for line in child.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError("".join(lines))


def kill(child: "subprocess.Popen[str]") -> None:
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def test_the_tutorial(environment: dict[str, str]) -> None:
    first = start(environment, *SEARCH)
    until(first, "pilot switch:bsp@1,asp, run 0: accuracy")
    until(first, "phase 1: policy bsp")  # the next pilot is under way
    kill(first)

    second = start(environment, *SEARCH)
    output, said = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert re.findall(r"pilot (\S+), run", said) == ["switch:bsp@0.5,asp"]
    (found,) = re.findall(r"polyrhythm: (\S+) is the policy that was found", said)
    rules = re.findall(r"hub: phase \d: policy (\S+) on 2 workers", said)
    assert rules == ["bsp", "asp", *(["bsp", "asp"] if found == "switch:bsp@0.5,asp" else ["bsp"])]
    assert len(re.findall(r"epoch \d: \S+, accuracy 0\.\d+", output)) == 2

    again = start(environment)
    lines = until(again, f"{found} is the policy that was found")
    assert len(lines) == 1
    kill(again)
