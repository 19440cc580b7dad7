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

__all__ = ["Host", "network", "outputs", "python", "result", "started"]

LIMIT_S = 600.0
"""No program takes so long."""

PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])


def python(host: Host, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """Start Python on a host, with one thread, the job's secret and further variables."""
    variables |= {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "POLYRHYTHM_TOKEN": "bench"}
    settings = [f"{name}={value}" for name, value in variables.items()]
    return host.start(["env", *settings, sys.executable, *arguments])


def started(process: "subprocess.Popen[str]") -> None:
    """Wait for the first line of a server."""
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"a server has not started: {process.communicate()[1]}")


def result(processes: Sequence["subprocess.Popen[str]"]) -> Any:
    """What the first one's last line says, as JSON, once all have ended well."""
    return json.loads(outputs(processes)[0].splitlines()[-1])


def outputs(processes: Sequence["subprocess.Popen[str]"]) -> list[str]:
    """What each has printed, once all have ended well."""
    found = [process.communicate(timeout=LIMIT_S) for process in processes]
    for process, (_, errors) in zip(processes, found, strict=True):
        if process.returncode:
            raise RuntimeError(f"a program on a host has failed: {errors}")
    return [printed for printed, _ in found]
