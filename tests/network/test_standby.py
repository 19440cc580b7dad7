"""The first host is lost, with the coordinator: its standby on another one goes on, and each sample counts once."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.namespaces import Host, network, run

LIMIT_S = 180.0
HANG_AFTER_S = 3

SCRIPT = """
import os
import torch
import polyrhythm
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts

model = SampleAttempts(2, 960)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
with polyrhythm.session(model, optimizer, epochs=2) as session:
    train_attempts(session, model, optimizer, 4, 0.02)
torch.save(model.weight.detach()[..., 0].clone(), f"{os.environ['OUT']}/{os.environ['RANK']}.pt")
"""

WATCH = """
import time
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer

while True:
    try:
        if steer.status(steer.at("apart", "tcp:10.77.0.1:29400", "secret"), 5.0).samples >= 300:
            break
    except PolyrhythmError:
        pass
"""


def on(host: Host, *command: str | Path) -> list[str | Path]:
    environment = ["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1"]
    return ["ip", "netns", "exec", host.namespace, *environment, sys.executable, *command]


def start(hosts: list[Host], out: Path, policy: str) -> None:
    script = out / "train.py"
    script.write_text(SCRIPT)
    for number, host in enumerate(hosts):
        place = ["--nnodes", str(len(hosts)), "--node-rank", str(number), "--rdzv-endpoint", "10.77.0.1"]
        standby = ["--rdzv-id", "apart", "--standby", "10.77.0.2", "--hang-after", str(HANG_AFTER_S)]
        command = [sys.executable, "-m", "polyrhythm", "run", *place, *standby, "--snapshot", "0.5s"]
        environment = ["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1", f"OUT={out}"]
        host.start([*environment, *command, "--policy", policy, script])


def kill(first: Host) -> None:
    """kill -9 of everything on a host."""
    for pid in run("ip", "netns", "pids", first.namespace).split():
        os.kill(int(pid), 9)


def cut(first: Host) -> None:
    """Its cable is pulled, for good."""
    switch = f"polyrhythm-{os.getpid()}-switch"
    run("ip", "-n", switch, "link", "set", f"port{first.namespace.rpartition('-')[2]}", "down")


@pytest.mark.parametrize("lose", [kill, cut])
@pytest.mark.parametrize("policy", ["bsp", "asp", "local:8"])
def test_the_job_goes_on_without_its_first_host(tmp_path: Path, policy: str, lose: Callable[[Host], None]) -> None:
    """Of three hosts with a worker each; that of the first is lost with it."""
    import torch

    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, policy)
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        lose(hosts[0])
        ended = [host.processes[0].communicate(timeout=LIMIT_S) for host in hosts]
        codes = [host.processes[0].returncode for host in hosts]
    said = ["\n".join(words) for words in ended]
    assert codes[1:] == [0, 0], said
    assert "the coordinator is started again here (1 of 5)" in said[1]
    if lose is cut:
        assert codes[0] != 0
        assert "the job goes on with its standby on 10.77.0.2, and ends here" in said[0]
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (1, 2))
    assert torch.equal(one, other)
    parts = torch.tensor([1 / 3, 1 / 2])
    assert bool(torch.isclose(one[..., None], parts).any(-1).all())


def test_a_host_without_the_first_and_the_standby_ends_with_one_line(tmp_path: Path) -> None:
    """Both are lost; whoever is left has nobody to turn to."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        kill(hosts[1])
        kill(hosts[0])
        _, errors = hosts[2].processes[0].communicate(timeout=LIMIT_S)
    assert hosts[2].processes[0].returncode not in (None, 0)
    assert "Traceback" not in errors
