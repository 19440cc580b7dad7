"""Processes of joblib's end with the one that has called them."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pytest

from polyrhythm.sim.tied import LOOK_S, delayed

CALLS = """
import os, sys
import joblib
from polyrhythm.sim.tied import delayed

def stay(number):
    with open(sys.argv[1], "w") as told:
        told.write(f"{os.getpid()}\\\\n")
    os.read(os.open(sys.argv[2], os.O_RDWR), 1)

joblib.Parallel(n_jobs=2)(delayed(stay)(number) for number in range(2))
"""

LIMIT_S = 60.0


def ends(process: int) -> bool:
    """Whether it ends; Linux tells of it."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        ended = select.poll()  # other tests may have left many descriptors, more than select takes
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(1e3 * LIMIT_S))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_the_one_that_has_called_them(tmp_path: Path, number: signal.Signals) -> None:
    """Each stands in a call for ever."""
    told, never = tmp_path / "told", tmp_path / "never"
    os.mkfifo(told)
    os.mkfifo(never)
    (tmp_path / "calls.py").write_text(CALLS.replace("\\\\", "\\"))
    with subprocess.Popen([sys.executable, str(tmp_path / "calls.py"), str(told), str(never)]) as caller:
        descriptor = os.open(told, os.O_RDWR)  # so that it has no end
        with open(descriptor, encoding="ascii", buffering=1) as lines:
            processes = {int(lines.readline()) for _ in range(2)}
        caller.send_signal(number)
    assert caller.pid not in processes
    assert [process for process in processes if not ends(process)] == []


def inner(number: int, backend: str | None) -> int:
    """A call within a process of joblib's, of which that process is the caller; it outlives some looks."""
    (found,) = joblib.Parallel(n_jobs=2, backend=backend)([delayed(abs)(-number)])
    time.sleep(2 * LOOK_S)
    return int(found)


@pytest.mark.parametrize("backend", [None, "loky"])
def test_a_call_within_such_a_process_leaves_it_alive(backend: str | None) -> None:
    assert joblib.Parallel(n_jobs=2)(delayed(inner)(number, backend) for number in range(2)) == [0, 1]
