"""The doctor on real gloo workers that it watches: one rank of four is held up, two in turns, a link is thin, or none.

Each run is a job of its own: four processes of a plain script (``_slow_rank.py``), each on a host of its own (network
namespaces: needs root, `ip` and `tc`), with the watcher in them. Who is slow is drawn from the number of the run. The
processes are forked from four that have imported torch, wait where they would compute, and run at real-time priority,
so that other work of the host is nobody's delay. Results are kept in a file,
and runs that are in it are not made again: ``doctor_live.py [RUNS] [FILE]``; exits with 1 if a bar is missed.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from _hosts import PATHS, Host, network
from _priority import come_first
from rich.console import Console
from rich.table import Table

from polyrhythm.doctor.diagnosis import SETTLING, blamed
from polyrhythm.doctor.readers.rings import read_rings

RUNS, RANKS, STEPS = 50, 4, 120
PARTS = {
    "none": "",
    "computing": "computing",
    "loading": "data loading",
    "link": "link",
    "pause": "pause",
    "rotating": "computing",
}
LONGER = {"pause": 200}
"""It takes ten pauses of one rank of four to tell them from chance."""

STEP_MS, EXTRA_MS = 30, 30
USUAL_MBIT, THIN_MBIT = 1000.0, 20.0
WIDTH = 2500
"""Of the network: messages of 200 kB."""

LEAST_RIGHT = 0.99
FIRST_PORT = 20_000
KEPT = Path("out/doctor-live.json")
LIMIT_S = 120.0


class DoctorRun(NamedTuple):
    """What was done in one run, and what was said of it."""

    kind: str
    seed: int
    right: bool
    wanted: str
    found: str


class Hosts:
    """Four hosts with a process each that forks a rank when it is told to."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts, self._runs = hosts, 0
        self._parents = [self._start(rank, host) for rank, host in enumerate(hosts)]

    def _start(self, rank: int, host: Host) -> "subprocess.Popen[str]":
        named = f"hostname host{rank}; exec {sys.executable} {__file__} parent {rank}"
        command = ["ip", "netns", "exec", host.namespace, "unshare", "--uts", "sh", "-c", named]
        environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, **pipes)
        host.processes.append(process)
        return process

    def job(self, folder: Path, words: list[str]) -> list[str]:
        """One job; the lines of its first rank."""
        self._runs += 1
        order = {"folder": str(folder), "port": str(FIRST_PORT + self._runs), "words": words}
        for parent in self._parents:
            assert parent.stdin is not None
            print(json.dumps(order), file=parent.stdin, flush=True)
        answers = []
        for parent in self._parents:
            assert parent.stdout is not None
            lines = list(iter(parent.stdout.readline, "end\n"))
            assert lines[-1:] == ["0\n"], f"a rank has failed: {lines}"
            answers.append(lines[:-1])
        return answers[0]

    @contextmanager
    def thin(self, rank: int | None) -> Iterator[None]:
        """What this host sends goes over a thin link meanwhile."""
        if rank is not None:
            self._limit(rank, THIN_MBIT)
        try:
            yield
        finally:
            if rank is not None:
                self._limit(rank, USUAL_MBIT)

    def _limit(self, rank: int, rate_mbit: float) -> None:
        bucket = [
            "rate",
            f"{rate_mbit}mbit",
            "burst",
            str(8 * 1024 if rate_mbit < 500 else 500_000),
            "latency",
            "100ms",
        ]
        device = ["tc", "-n", self._hosts[rank].namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        subprocess.run([*device, *bucket], check=True)


def parent(rank: int) -> None:
    """Fork a rank for each line, and say how it ended."""
    import torch._dynamo  # noqa: F401

    assert come_first(), "root may"
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            be_rank(rank, order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), "end", sep="\n", flush=True)


def be_rank(rank: int, order: dict[str, Any]) -> None:
    """Run the script as a rank under watch."""
    import _slow_rank

    from polyrhythm.doctor.watch.watcher import RankWatcher

    address = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": order["port"]}
    os.environ |= {**address, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS)}
    RankWatcher(Path(order["folder"])).install()
    sys.argv = ["_slow_rank.py", *order["words"]]
    _slow_rank.main()


def run(hosts: Hosts, kind: str, seed: int) -> DoctorRun:
    """One job of this kind, and what the doctor makes of it."""
    script = "none" if kind == "link" else kind
    words = ["--kinds", script, "--steps", str(LONGER.get(kind, STEPS)), "--seed", str(seed), "--width", str(WIDTH)]
    words += ["--step-ms", str(STEP_MS), "--extra-ms", str(EXTRA_MS)]
    thin = seed % RANKS if kind == "link" else None
    with TemporaryDirectory() as name, hosts.thin(thin):
        (line,) = [line for line in hosts.job(Path(name), words) if line.split()[0] == script]
        evidence = read_rings(sorted(Path(name).glob("*.ring")))
    found = {(one.rank, one.part) for one in blamed(evidence.between(SETTLING, evidence.steps))[0]}
    slow = [thin] if thin is not None else [int(word) for word in line.split()[1:]]
    wanted = {(rank, PARTS[kind]) for rank in slow if PARTS[kind]}
    return DoctorRun(kind, seed, found == wanted, str(sorted(wanted)), str(sorted(found)))


def main(runs: int, kept: Path) -> bool:
    """Whether the bars were met."""
    done = [DoctorRun(*entry) for entry in json.loads(kept.read_text(encoding="utf-8"))] if kept.exists() else []
    made = {(one.kind, one.seed) for one in done}
    left = [(kind, seed) for seed in range(runs) for kind in PARTS if (kind, seed) not in made]
    if left:
        with network(RANKS, USUAL_MBIT) as hosts:
            several = Hosts(hosts)
            for kind, seed in left:
                done.append(run(several, kind, seed))
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(done, indent=0), encoding="utf-8")
    return told([one for one in done if one.seed < runs])


def told(done: list[DoctorRun]) -> bool:
    """Show the runs; whether the bars were met."""
    table = Table("held up", "runs", "right", "bar")
    number, right = Counter(one.kind for one in done), Counter(one.kind for one in done if one.right)
    for kind in PARTS:
        table.add_row(kind, str(number[kind]), str(right[kind]), f"{LEAST_RIGHT:.0%}")
    Console(width=120).print(table)
    for one in done:
        if not one.right:
            print(f"{one.kind}, run {one.seed}: {one.found} for {one.wanted}")
    return all(right[kind] >= LEAST_RIGHT * number[kind] for kind in PARTS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["parent", rank]:
            parent(int(rank))
        case [runs, kept]:
            sys.exit(not main(int(runs), Path(kept)))
        case [runs]:
            sys.exit(not main(int(runs), KEPT))
        case _:
            sys.exit(not main(RUNS, KEPT))
