"""Two hosts do not reach each other any more, while both hear the first one: the job ends with a line, and says who."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.namespaces import Host, network, run
from tests.network.test_standby import SCRIPT, WATCH, on

LIMIT_S = 120.0


def start(hosts: list[Host], out: Path, policy: str) -> list[subprocess.Popen[str]]:
    script = out / "train.py"
    script.write_text(SCRIPT)
    environment = ["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1", f"OUT={out}"]
    shape = ["--nnodes", str(len(hosts)), "--rdzv-endpoint", "10.77.0.1", "--rdzv-id", "apart", "--hang-after", "2"]
    command = [*environment, sys.executable, "-m", "polyrhythm", "run", *shape, "--policy", policy]
    return [host.start([*command, "--node-rank", str(number), script]) for number, host in enumerate(hosts)]


def part(first: Host, second: Host) -> None:
    """What either sends to the other is lost."""
    for here, there in ((first, second), (second, first)):
        run("ip", "-n", here.namespace, "route", "add", "blackhole", f"{there.address}/32")


@pytest.mark.parametrize("policy", ["bsp", "local:8"])
def test_hosts_that_do_not_reach_each_other_end_the_job(tmp_path: Path, policy: str) -> None:
    with network(3, rate_mbit=1000) as hosts:
        jobs = start(hosts, tmp_path, policy)
        subprocess.run(on(hosts[0], "-c", WATCH), check=True, timeout=LIMIT_S, env=os.environ)
        part(hosts[1], hosts[2])
        said = [job.communicate(timeout=LIMIT_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [1, 1, 1]
    assert "10.77.0.3 was not reached for 2 s" in said[0] or "10.77.0.2 was not reached for 2 s" in said[0]
    assert "enforce fail" not in said[0]
    assert "could not form a group in 3 attempts; see that they reach each other's addresses" in said[0]
