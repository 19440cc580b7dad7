"""One job of `language_model.py`: `examples/train_gpt.py` on two hosts, and what was seen of it."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import msgspec
from _hosts import ROOT, Host, network, python

from polyrhythm.core import Report, Sync, Trace
from polyrhythm.sim.cluster.calibration import SHORTEST_S, by_worker

HOSTS, PER_HOST, PORT = 2, 2, "29400"
WORKERS = HOSTS * PER_HOST
SCRIPT = str(ROOT / "examples" / "train_gpt.py")
NO_EXCHANGE = "local:1000000"
"""The policy of the run that says what a step takes by itself."""

LIMIT_S = 600.0
STEP = re.compile(r"step (\d+): ([\d.]+) s, loss")
PERPLEXITY = re.compile(r"after step (\d+): perplexity ([\d.]+)")
SIZE = re.compile(r"(\d+) parameters, ")


class Way(msgspec.Struct, frozen=True):
    """How the script is run: under which policy, None for torchrun's own, and with which flags of its own."""

    name: str
    policy: str | None
    flags: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True):
    """Flags of the script that are the same in all runs."""

    text: str
    test: str
    batch_size: int
    flags: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """After so many steps: seconds, and bytes that have left the host of the first rank."""

    step: int
    seconds: float
    sent: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a run.

    Args:
        way, rate_mbit, steps: what was run.
        parameters: of the model.
        marks: of the first rank, on the way.
        perplexities: of its model after so many steps; the last of what all workers have at the end.
        step_s: of each worker, without what it waited; of the run without an exchange.
        exchanges: share of the steps that an exchange of all replicas followed, if the policy's trace tells.
    """

    way: str
    rate_mbit: float
    steps: int
    parameters: int
    marks: list[Mark]
    perplexities: list[tuple[int, float]]
    step_s: list[list[float]] = []
    exchanges: float = 0.0

    def between(self, first: int, last: int) -> tuple[float, float]:
        """Seconds and bytes of a step, between two marks."""
        by_step = {mark.step: mark for mark in self.marks}
        start, end = by_step[first], by_step[last]
        return (end.seconds - start.seconds) / (last - first), (end.sent - start.sent) / (last - first)


def run(way: Way, rate_mbit: float, steps: int, model: Model, log_every: int, evaluate: Sequence[int]) -> Run:
    """One job on hosts whose links have this rate."""
    samples = steps * model.batch_size * WORKERS
    every = ("--log-every", str(log_every), "--evaluate", *map(str, evaluate))
    texts = ("--text", model.text, "--test", model.test, "--batch-size", str(model.batch_size))
    script = (SCRIPT, *texts, "--samples", str(samples), *every, *model.flags, *way.flags)
    with TemporaryDirectory() as folder, network(HOSTS, rate_mbit) as hosts:
        with affinity_kept() as cores:
            jobs = []
            for number, host in enumerate(hosts):
                os.sched_setaffinity(0, {cores[number % len(cores)]})
                jobs.append(launch(way, number, host, hosts[0], folder, script))
        lines = list(told(jobs[0], hosts[0]))
        for job in jobs:
            _, errors = job.communicate(timeout=LIMIT_S)
            if job.returncode:
                raise RuntimeError(f"{way.name} at {rate_mbit:g} Mbit/s has failed: {errors}")
        traces = [Trace.load(path) for path in sorted(Path(folder).iterdir())]
    return Run(
        way=way.name,
        rate_mbit=rate_mbit,
        steps=steps,
        parameters=next(int(found[1]) for line, _ in lines if (found := SIZE.match(line))),
        marks=[Mark(int(f[1]), float(f[2]), sent) for line, sent in lines if (f := STEP.match(line))],
        perplexities=[(int(f[1]), float(f[2])) for line, _ in lines if (f := PERPLEXITY.match(line))],
        step_s=steps_of(traces[0]) if way.policy == NO_EXCHANGE else [],
        exchanges=exchanged(traces[0]) if traces else 0.0,
    )


@contextmanager
def affinity_kept() -> Iterator[list[int]]:
    """The cores of this process, which are its own again afterwards; a host that is started on one keeps it."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, cores)


def launch(way: Way, number: int, host: Host, head: Host, folder: str, script: tuple[str, ...]) -> "Popen[str]":
    numbers = ("--nnodes", str(HOSTS), "--node-rank", str(number), "--nproc-per-node", str(PER_HOST))
    if way.policy is None:
        where = ("--master-addr", head.address, "--master-port", PORT)
        return python(host, "-m", "torch.distributed.run", *numbers, *where, *script, GLOO_SOCKET_IFNAME="eth0")
    endpoint = ("--rdzv-endpoint", f"{head.address}:{PORT}", "--rdzv-id", "language", "--hang-after", "60")
    flags = ("--policy", way.policy, "--trace", folder)
    return python(host, "-m", "polyrhythm", "run", *numbers, *endpoint, *flags, *script)


def told(job: "Popen[str]", host: Host) -> Iterator[tuple[str, int]]:
    """Each line of the first host's workers, and what the host had sent when it came."""
    assert job.stdout is not None
    for line in job.stdout:
        yield line, sent_by(host)


def sent_by(host: Host) -> int:
    """Bytes that have left a host, with their headers."""
    with (Path("/proc") / str(host.processes[0].pid) / "net" / "dev").open() as counters:
        (own,) = (line for line in counters if line.strip().startswith("eth0:"))
    return int(own.partition(":")[2].split()[8])


def steps_of(trace: Trace) -> list[list[float]]:
    """Seconds of each worker's steps, without what it waited for others."""
    return [[max(SHORTEST_S, step.cycle_s - step.wait_s) for step in steps] for steps in by_worker(trace, WORKERS)]


def exchanged(trace: Trace) -> float:
    """Share of the steps that an exchange followed."""
    reports = sum(isinstance(event, Report) for event, _ in trace.entries)
    syncs = sum(isinstance(decision, Sync) for _, decisions in trace.entries for decision in decisions)
    return syncs * WORKERS / reports if reports else 0.0


def kept(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)
