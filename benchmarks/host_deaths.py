"""A job's first host killed at seeded moments, by policy: whether the standby finishes it, is exact, and the pause.

``host_deaths.py [MOMENTS [SEED [FILE]]]``. Three hosts are network namespaces with a worker each, which needs root and
iproute2; kill -9 takes every process of the first one: launcher, coordinator and worker. As in
``coordinator_deaths.py``, every attempt at a sample moves a parameter of that sample, and the pause is the time from
the kill until the job has made samples in a later phase. With FILE, results are kept there as JSON lines, and seeds
that it has are not played again.

Exits with 1 if a job does not finish, a sample is lost or made twice, or the median pause is longer than the bar.
"""

import random
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import torch
from _hosts import Host, network, python
from coordinator_deaths import Moment, play_all, told, trouble

MOMENTS, SEED = 12, 1
FAMILIES = ("bsp", "asp", "local:8")
HOSTS, RATE_MBIT, BATCH, SAMPLES, EPOCHS, SLOTS = 3, 1000, 2, 480, 2, 32
COMPUTE_S, SNAPSHOT, LIMIT_S = 0.003, "0.5s", 90.0
FOLDER = Path(__file__).parent


def start(host: Host, number: int, job: str, policy: str, hosts: list[Host], out: Path) -> "subprocess.Popen[str]":
    """The launcher of a host."""
    place = ("--nnodes", str(HOSTS), "--node-rank", str(number), "--rdzv-endpoint", hosts[0].address)
    flags = ("--rdzv-id", job, "--standby", hosts[1].address, "--snapshot", SNAPSHOT, "--policy", policy)
    script = (str(FOLDER / "_attempts_worker.py"), *map(str, (EPOCHS, SAMPLES, SLOTS, BATCH, COMPUTE_S)))
    return python(host, "-m", "polyrhythm", "run", *place, *flags, *script, OUT=str(out))


def play(seed: int, hosts: list[Host]) -> Moment:
    """The moment of a seed."""
    policy, job = FAMILIES[seed % len(FAMILIES)], f"hosts-{uuid.uuid4().hex[:12]}"
    at = random.Random(seed).randrange(1, EPOCHS * SAMPLES - 60)
    with tempfile.TemporaryDirectory() as folder:
        launchers = [start(host, number, job, policy, hosts, Path(folder)) for number, host in enumerate(hosts)]
        place = hosts[0].address, hosts[1].address, hosts[0].namespace
        watcher = python(hosts[1], str(FOLDER / "_host_loss.py"), job, *place, str(at))
        try:
            pause_s = float(watcher.communicate(timeout=LIMIT_S)[0])
            said = [launcher.communicate(timeout=LIMIT_S)[1] for launcher in launchers]
        except (subprocess.TimeoutExpired, ValueError) as error:
            return Moment(seed, policy, at, LIMIT_S, f"{type(error).__name__}: {error}")
        finally:
            for host in hosts:
                host.stop()
                host.processes.clear()
        if any(launcher.returncode for launcher in launchers[1:]):
            return Moment(seed, policy, at, pause_s, " | ".join(said))
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in (1, 2)]
    return Moment(seed, policy, at, pause_s, trouble("", found, []))


def main(moments: int, first: int, file: Path | None) -> str | None:
    """What went wrong."""
    with network(HOSTS, RATE_MBIT) as hosts:
        return told(play_all(range(first, first + moments), file, lambda seed: play(seed, hosts)), FAMILIES)


if __name__ == "__main__":
    counts = [*map(int, sys.argv[1:3]), *(MOMENTS, SEED)[len(sys.argv[1:3]) :]]
    sys.exit(main(counts[0], counts[1], Path(sys.argv[3]) if len(sys.argv) > 3 else None))
