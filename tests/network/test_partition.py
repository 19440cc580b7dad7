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


NOBODY = "02:00:00:00:00:01"
"""Hardware address that no host has."""


def part(first: Host, second: Host, drops: bool) -> None:
    """What either sends to the other is lost, or fails at once."""
    for here, there in ((first, second), (second, first)):
        if drops:
            lost = "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"
            run("ip", "-n", here.namespace, "neighbour", "replace", there.address, *lost)
        else:
            run("ip", "-n", here.namespace, "route", "add", "unreachable", f"{there.address}/32")


@pytest.mark.parametrize(("policy", "drops"), [("bsp", False), ("local:8", True)])
def test_hosts_that_do_not_reach_each_other_end_the_job(tmp_path: Path, policy: str, drops: bool) -> None:
    with network(3, rate_mbit=1000) as hosts:
        jobs = start(hosts, tmp_path, policy)
        subprocess.run(on(hosts[0], "-c", WATCH), check=True, timeout=LIMIT_S, env=os.environ)
        part(hosts[1], hosts[2], drops)
        said = [job.communicate(timeout=LIMIT_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [1, 1, 1]
    assert "could not form a group in 3 attempts; see that they reach each other's addresses" in said[0]
    apart = "host 10.77.0.2 (rank 1) and host 10.77.0.3 (rank 2) do not reach each other"
    ends = [[line for line in lines.splitlines() if "could not form a group" in line] for lines in said]
    assert [(len(lines), apart in lines[0]) for lines in ends] == [(1, True)] * 3, said
    assert not [frame for frame in ("ProcessGroup", "gloo", "Traceback", "failed with exit code") if frame in str(said)]
