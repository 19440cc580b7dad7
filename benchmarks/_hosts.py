"""Hosts for benchmarks: the network namespaces of the test suite, and Python programs that run on them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.network.namespaces import Host, network  # noqa: E402

__all__ = ["Host", "network", "python", "result", "started"]

LIMIT_S = 600.0
"""No program takes so long."""

PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])


def python(host: Host, *arguments: str) -> "subprocess.Popen[str]":
    """Start Python on a host, with one thread and the job's secret."""
    settings = ("env", f"PYTHONPATH={PATHS}", "OMP_NUM_THREADS=1", "POLYRHYTHM_TOKEN=bench")
    return host.start([*settings, sys.executable, *arguments])


def started(process: "subprocess.Popen[str]") -> None:
    """Wait for the first line of a server."""
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"a server has not started: {process.communicate()[1]}")


def result(processes: Sequence["subprocess.Popen[str]"]) -> Any:
    """What the first one's last line says, as JSON, once all have ended well."""
    outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a program on a host has failed: {errors}")
    return json.loads(outputs[0][0].splitlines()[-1])
