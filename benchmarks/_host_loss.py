"""Kill a job's first host at a moment, seen from another one: ``_host_loss.py JOB FIRST STANDBY NAMESPACE SAMPLES``.

Prints the seconds from the kill until the job has made samples in a later phase.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status

LIMIT_S, ANSWER_S, PERIOD_S = 60.0, 10.0, 0.005
TOKEN = os.environ["POLYRHYTHM_TOKEN"]


def look(job: str, address: str) -> Status | None:
    """How the job is; nothing if nobody answers."""
    try:
        return steer.status(steer.at(job, address, TOKEN), ANSWER_S)
    except PolyrhythmError:
        return None


def kill_host(namespace: str) -> None:
    """kill -9 of every process of a host, also of those that are forked meanwhile."""
    while pids := subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def pause(job: str, first: str, standby: str, namespace: str, samples: int) -> float:
    """Kill it when so many samples are made; seconds until the job has gone on."""
    before, start = None, time.monotonic()
    while before is None or before.samples < samples:
        before = look(job, first)
        time.sleep(PERIOD_S)
        if time.monotonic() > start + LIMIT_S:
            return LIMIT_S
    start = time.monotonic()
    kill_host(namespace)
    while time.monotonic() < start + LIMIT_S:
        now = look(job, standby)
        if now is not None and now.phase > before.phase and now.steps > 0:
            break
        time.sleep(PERIOD_S)
    return time.monotonic() - start


if __name__ == "__main__":
    job, first, standby, namespace, samples = sys.argv[1:]
    print(pause(job, f"tcp:{first}:29400", f"tcp:{standby}:29400", namespace, int(samples)))
