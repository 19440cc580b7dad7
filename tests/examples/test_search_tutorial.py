"""The tutorial of docs/guides/search.md on real workers: searched, killed, resumed, run again and switched live.

The script is like that of the tutorial but for its data: to import scikit-learn takes a worker longer than to train.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm

torch.manual_seed(int(sys.argv[1]))
x = torch.randn(600, 4)
data = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with polyrhythm.session(model, optimizer, epochs=2) as session:
    for epoch in range(2):
        for inputs, targets in session.loader(data, batch_size=10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if session.rank == 0:
            right = (model(x).argmax(1) == data.tensors[1]).float().mean()
            print(f"epoch {epoch}: {session.policy}, accuracy {right:.3f}", flush=True)
"""
JOB = ["--nproc-per-node", "2", "--epochs", "2", "--policy", "sync-switch"]
SEARCH = ["--search", "--settings", "1", "--runs", "1", "--error-rate", "0.5", "--beta", "0.1"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ours = {"OMP_NUM_THREADS": "1", "POLYRHYTHM_STORE": str(tmp_path / "searches.db"), "SCRIPT": str(script)}
    return {**os.environ, **ours}


def start(environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "polyrhythm", "run", *options, *JOB, environment["SCRIPT"], "{run}"]
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
    kill(first)  # when the next pilot is about to start

    second = start(environment, *SEARCH)
    said = "".join(until(second, "is the policy that was found"))
    kill(second)
    assert re.findall(r"pilot (\S+), run", said) == ["switch:bsp@0.5,asp"]
    assert re.findall(r"coordinator: phase \d: policy (\S+) on 2 workers", said) == ["bsp", "asp"]
    (found,) = re.findall(r"polyrhythm: (\S+) is the policy that was found", said)

    again = start(environment)
    output, said = again.communicate(timeout=600)
    assert again.returncode == 0, said
    assert "pilot" not in said
    assert f"{found} is the policy that was found" in said
    policies = ["bsp", "asp"] if found == "switch:bsp@0.5,asp" else ["bsp"]
    assert re.findall(r"coordinator: phase \d: policy (\S+) on 2 workers", said) == policies
    assert len(re.findall(r"epoch \d: \S+, accuracy 0\.\d+", output)) == 2
