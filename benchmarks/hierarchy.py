"""Several hosts with several workers each: sums on the host first, against gloo's flat ring, which torchrun has.

Two hosts of four workers and four of two, each a network namespace that `tc` limits in both directions, on all of this
machine's cores; a model of 0.8 M parameters (3.2 MB) under DistributedDataParallel. Needs root and iproute2. Exits with
1 if a bar is missed:

- with two hosts at 200 Mbit/s a step takes at most 0.6 of torchrun's;
- sums one after another use at least 85 % of the line's rate;
- a host sends what every all-reduce among n hosts must send, 2 (n - 1) / n of the vector, and
  at most 3 % more for headers.

That is 0.57 of what a ring of eight sends from each of two hosts, and 0.86 of what it sends from each of four: so
little can be gained with four hosts of two.
"""

import argparse
import json
import sys
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from _hosts import Host, network, outputs, python
from _hosts_worker import FLAT, NUMBERS
from rich.console import Console
from rich.table import Table

from polyrhythm.runtime.wire.connection import ADDRESS

SHAPES = ((2, 4), (4, 2))
RATES_MBIT = (200, 1000)
WARM, STEPS, PORT = 5, 20, "29400"
MOST_HEADERS, MOST_STEP, LEAST_SHARE = 0.03, 0.6, 0.85
BARRED = 2, 200
"""Hosts and Mbit/s where a step has a bar."""

SCRIPT = str(Path(__file__).parent / "_hosts_worker.py")


class Measured(NamedTuple):
    """Of one step: its seconds, and the bytes of the host that sent most."""

    seconds: float
    sent: float

    def share(self, rate_mbit: int) -> float:
        """Of the line's rate."""
        return self.sent * 8 / self.seconds / (rate_mbit * 1e6)


class Shape(NamedTuple):
    """How many hosts there are, and workers on each."""

    hosts: int
    per_host: int

    @property
    def workers(self) -> int:
        return self.hosts * self.per_host


def measured(processes: list["Popen[str]"]) -> Measured:
    """What those processes say who look at what their hosts send."""
    lines = [line for printed in outputs(processes) for line in printed.splitlines() if line.startswith("marks ")]
    spans = []
    for line in lines:
        marks = json.loads(line.removeprefix("marks "))
        (start, before), (end, after) = marks[WARM - 1], marks[-1]
        steps = len(marks) - WARM
        spans.append(((end - start) / steps, (after - before) / steps))
    return Measured(max(seconds for seconds, _ in spans), max(sent for _, sent in spans))


def train(way: str, shape: Shape, rate_mbit: int) -> Measured:
    """A job of the script: under torchrun, or under Polyrhythm, which may not see who is on one host."""
    with network(shape.hosts, rate_mbit) as hosts:
        return measured([launch(way, shape, number, host, hosts[0]) for number, host in enumerate(hosts)])


def launch(way: str, shape: Shape, number: int, host: Host, head: Host) -> "Popen[str]":
    numbers = ("--nnodes", str(shape.hosts), "--node-rank", str(number), "--nproc-per-node", str(shape.per_host))
    script = (SCRIPT, str(WARM + STEPS))
    if way == "torchrun":
        where = ("--master-addr", head.address, "--master-port", PORT)
        return python(host, "-m", "torch.distributed.run", *numbers, *where, *script, GLOO_SOCKET_IFNAME="eth0")
    endpoint = ("--rdzv-endpoint", f"{head.address}:{PORT}", "--rdzv-id", "bench", "--policy", "bsp")
    return python(host, "-m", "polyrhythm", "run", *numbers, *endpoint, *script, **settings(way))


def add_up(way: str, shape: Shape, rate_mbit: int) -> Measured:
    """Sums of the model's size one after another, with nothing in between."""
    with network(shape.hosts, rate_mbit) as hosts:
        processes = []
        for rank in range(shape.workers):
            host, first = hosts[rank // shape.per_host], "first" if rank % shape.per_host == 0 else "other"
            what = ("sums", str(rank), str(shape.workers), hosts[0].address, str(WARM + STEPS), first)
            processes.append(python(host, SCRIPT, *what, **settings(way), **{ADDRESS: host.address}))
        return measured(processes)


def settings(way: str) -> dict[str, str]:
    return {FLAT: "1"} if way == "flat" else {}


def rows(shape: Shape, rate_mbit: int) -> list[tuple[str, str, str, str, bool]]:
    """What is shown of one network."""
    torchrun, flat, ours = (train(way, shape, rate_mbit) for way in ("torchrun", "flat", "hierarchy"))
    flat_sum, our_sum = (add_up(way, shape, rate_mbit) for way in ("flat", "hierarchy"))
    head, step = f"{shape.hosts} x {shape.per_host}, {rate_mbit} Mbit/s", ours.seconds / torchrun.seconds
    most = (1 + MOST_HEADERS) * 2 * (shape.hosts - 1) / shape.hosts * 4 * NUMBERS
    fewer, share = our_sum.sent / flat_sum.sent, our_sum.share(rate_mbit)
    barred = (shape.hosts, rate_mbit) == BARRED
    times = ", ".join(f"{each.seconds * 1e3:.0f}" for each in (torchrun, flat, ours))
    sums = f"{flat_sum.seconds * 1e3:.0f}, {our_sum.seconds * 1e3:.0f} ms"
    sent = f"{flat_sum.sent / 1e6:.2f}, {our_sum.sent / 1e6:.2f} MB: {fewer:.2f}"
    in_steps = ", ".join(f"{each.sent / 1e6:.2f}" for each in (torchrun, flat, ours))
    return [
        (head, "step: torchrun, flat ring, hierarchy", f"{times} ms: {step:.2f}", f"<= {MOST_STEP:g}" if barred else "",
         step <= MOST_STEP or not barred),
        (head, "a host sends in it", f"{in_steps} MB", "", True),
        (head, f"sum of {NUMBERS} alone: flat, hierarchy", sums, "", True),
        (head, "a host sends in it", sent, f"<= {most / 1e6:.2f} MB", our_sum.sent <= most),
        (head, "of the line's rate: flat, hierarchy", f"{flat_sum.share(rate_mbit):.0%}, {share:.0%}",
         f">= {LEAST_SHARE:.0%}", share >= LEAST_SHARE),
    ]  # fmt: skip


def main(arguments: list[str]) -> bool:
    """Whether every bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, choices=RATES_MBIT, help="only this one, in Mbit/s")
    parser.add_argument("--hosts", type=int, choices=[hosts for hosts, _ in SHAPES], help="only so many")
    chosen = parser.parse_args(arguments)
    table, met = Table("hosts x workers, links", "what", "figure", "bar"), True
    for rate_mbit in [chosen.rate] if chosen.rate else RATES_MBIT:
        for shape in (Shape(*shape) for shape in SHAPES if chosen.hosts in (None, shape[0])):
            for *cells, good in rows(shape, rate_mbit):
                met &= good
                table.add_row(*cells, style=None if good else "red")
    Console(width=120).print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
