"""A job on several hosts: torchrun's flags, switches from another host, and the samples of every epoch."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.network.namespaces import Host, network

LIMIT_S = 120.0

SCRIPT = """
import os, subprocess, sys
import torch
import polyrhythm

rank = int(os.environ["RANK"])
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
numbers = torch.arange(96)
data = torch.utils.data.TensorDataset(torch.ones(96, 3), torch.ones(96, 1), numbers)
switches = {(3, 0, 3): "asp", (3, 1, 0): "bsp"}  # in an asynchronous epoch every rank is sure of its first step only

def switch(spec):
    coordinator = "tcp:10.77.0.1:29400"
    subprocess.run([sys.executable, "-m", "polyrhythm", "ctl", "apart", "--at", coordinator, "switch", spec],
    check=True)

with polyrhythm.session(model, optimizer, epochs=3) as session:
    for epoch in range(3):
        for step, (x, y, number) in enumerate(session.loader(data, batch_size=4)):
            if (rank, epoch, step) in switches:
                switch(switches[rank, epoch, step])
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            print("".join(f"seen {epoch} {n}\\n" for n in number.tolist()), end="")
        total = sum(p.double().sum().item() for p in model.parameters())
        print(f"sum {epoch} {total}\\n", end="")
    print(f"ended {session.policy} {session.metrics['phase']}\\n", end="")
"""


def words(output: str, kind: str) -> list[tuple[str, ...]]:
    return [tuple(line.split()[1:]) for line in output.splitlines() if line.startswith(f"{kind} ")]


def start(host: Host, number: int, script: Path, *flags: str) -> None:
    endpoint = ["--nnodes", "2", "--node-rank", str(number), "--rdzv-endpoint", "10.77.0.1", "--rdzv-id", "apart"]
    command = [sys.executable, "-m", "polyrhythm", "run", *endpoint, "--nproc-per-node", "2", *flags]
    host.start(["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1", *command, script])


@pytest.mark.parametrize("flags", [("--policy", "bsp"), ("--policy", "bsp", "--shards", "2")], ids=" ".join)
def test_two_hosts_switch_there_and_back(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with network(2, rate_mbit=200) as hosts:
        for number, host in reversed(list(enumerate(hosts))):  # the coordinator's host comes last
            start(host, number, script, *flags)
        outputs = [process.communicate(timeout=LIMIT_S) for host in hosts for process in host.processes]
        codes = [process.returncode for host in hosts for process in host.processes]
    assert codes == [0, 0], "\n".join(errors for _, errors in outputs)
    text = "".join(output for output, _ in outputs)
    assert Counter(words(text, "seen")) == Counter({(str(e), str(n)): 1 for e in range(3) for n in range(96)})
    assert len(set(words(text, "sum"))) == 3
    assert set(words(text, "ended")) == {("bsp", "3")}


def test_a_wrong_secret_is_refused_within_seconds(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with network(2, rate_mbit=200) as hosts:
        start(hosts[0], 0, script)
        command = [sys.executable, "-m", "polyrhythm", "ctl", "apart", "--at", "tcp:10.77.0.1:29400"]
        assert hosts[0].processes[0].stderr is not None
        assert "to switch" in hosts[0].processes[0].stderr.readline()
        errors = "no answer"
        while "no answer" in errors:  # as long as the coordinator has not begun to listen
            asked = hosts[1].start(["env", "POLYRHYTHM_TOKEN=guess", *command])
            _, errors = asked.communicate(timeout=LIMIT_S)
    assert asked.returncode == 2
    assert "token" in errors.splitlines()[-1]
    assert os.environ.get("POLYRHYTHM_TOKEN") is None
