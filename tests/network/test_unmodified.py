"""A script that knows nothing of it on two hosts, taken from one policy to another and back from outside."""

import sys
from pathlib import Path

from polyrhythm.core import Trace
from tests.network.namespaces import network
from tests.runtime.script.bystander import bystander
from tests.runtime.script.runs import SCRIPTS, Run

SAMPLES, EPOCHS, LIMIT_S = 192, 3, 120.0
SCRIPT = (str(SCRIPTS / "residual.py"), "--samples", str(SAMPLES), "--epochs", str(EPOCHS))


def test_bsp_to_asp_to_bsp_from_the_other_host(tmp_path: Path) -> None:
    ask = "ctl apart --at tcp:10.77.0.1:29400 switch"
    site = bystander(tmp_path, {1: {"4": f"{ask} asp", "asp": f"{ask} bsp"}})
    settings = [f"{key}={value}" for key, value in {**site, "POLYRHYTHM_TOKEN": "secret"}.items()]
    endpoint = ["--nnodes", "2", "--rdzv-endpoint", "10.77.0.1", "--rdzv-id", "apart"]
    flags = [*endpoint, "--nproc-per-node", "1", "--full-duplex", "--trace", str(tmp_path / "traces")]
    with network(2, rate_mbit=200) as hosts:
        for number, host in enumerate(hosts):
            command = [sys.executable, "-m", "polyrhythm", "run", "--node-rank", str(number), *flags, *SCRIPT]
            host.start(["env", "-C", str(tmp_path), *settings, *command])
        outputs = [process.communicate(timeout=LIMIT_S) for host in hosts for process in host.processes]
        codes = [process.returncode for host in hosts for process in host.processes]
    assert codes == [0, 0], "\n".join(errors for _, errors in outputs)
    assert Run(tmp_path, [0, 0]).seen == [list(range(SAMPLES))] * EPOCHS
    phases = [Trace.load(path).header.policy for path in sorted((tmp_path / "traces").iterdir())]
    assert phases == ["bsp", "asp", "bsp"]
    assert len([line for line in outputs[0][0].splitlines() if "loss" in line]) == EPOCHS
