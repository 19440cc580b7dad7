"""Sums of vectors that members on one host hold, in the memory that they share and through gloo, side by side.

The members are processes that are forked from this one. They take turns with the two ways, each round gives one ratio,
and the median counts. Small vectors are what BSP sends in its last bucket; 0.8 M and 11 M are models. Long vectors are
lent to the other members, as DistributedDataParallel's buckets are; with ``--kept`` they are not, as what a script sums
up itself.

With two members the time is also compared with that of the memory itself. In memory that both map, each member of two
with vectors of n numbers of 4 bytes shows a half, adds up the other half, shows that, and takes what the other one has
added up: it reads 2 n numbers and writes 2 n, as much as two copies of a vector. So both members copy their vector
twice at the same time, and the sum shall take at most 1 / 0.6 of that. Exits with 1 if a bar is missed or a sum has
other bits than gloo's.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._C._distributed_c10d import TCPStore

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import all_reduce

MEMBERS, NUMBERS = (2, 4, 8, 16, 32), (5_000, 800_000, 11_000_000)
FASTER, OF_MEMORY = 4.0, 0.6
FORK = get_context("fork")

Times = dict[str, list[float]]


def member(rank: int, size: int, port: int, orders: Connection) -> None:
    """Sum up vectors of the lengths that come, in turns; the first member tells the times."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    generation = Generation(store, "sums", range(size), rank)
    generation.open_peer_sockets()
    orders.send(generation.shared is not None)
    while (order := orders.recv()) is not None:
        found = take_turns(generation, *order)
        if rank == 0:
            orders.send(found)
    generation.gather(b"\0")
    os._exit(0)


def take_turns(generation: Generation, length: int, rounds: int, lends: bool) -> tuple[Times, bool]:
    vector = torch.randn(length, generator=torch.Generator().manual_seed(generation.rank))
    ours, gloos = vector.clone(), vector.clone()
    gloo: Any = generation.backend(on_gpu=False)
    repeats = max(1, min(20, 2 * 10**7 // (length * generation.size)))
    ways: dict[str, Callable[[], object]] = {
        "shared": lambda: all_reduce(generation, ours, lends=lends),
        "gloo": lambda: gloo.allreduce([gloos]).wait(),
        "memory": lambda: ours.copy_(vector) is gloos.copy_(vector),
    }
    ways["gloo"]()
    equal = all([same(ways["shared"], ours, vector, gloos) for _ in range(3)])  # noqa: C419 - all members make three
    times: Times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            ours.copy_(vector)
            gloos.copy_(vector)
            generation.gather(b"\0")
            times[name].append(timed(call, repeats))
    return times, equal


def same(call: Callable[[], object], ours: torch.Tensor, vector: torch.Tensor, gloos: torch.Tensor) -> bool:
    """Whether the sum has gloo's bits."""
    ours.copy_(vector)
    call()
    return torch.equal(ours, gloos)


def timed(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(size: int, lengths: list[int], rounds: int, lends: bool, table: Table) -> bool:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [FORK.Pipe() for _ in range(size)]
    processes = [FORK.Process(target=member, args=(rank, size, port, there)) for rank, (_, there) in enumerate(pipes)]
    for process in processes:
        process.start()
    shares = all([here.recv() for here, _ in pipes])  # noqa: C419 - each has to come
    met = []
    for length in lengths:
        for here, _ in pipes:
            here.send((length, rounds, lends))
        times, equal = pipes[0][0].recv()
        met.append(show(size, length, times, equal and shares, table))
    for here, _ in pipes:
        here.send(None)
    for process in processes:
        process.join()
    return all(met)


def show(size: int, length: int, times: Times, equal: bool, table: Table) -> bool:
    def ratio(name: str) -> float:
        return median(other / ours for ours, other in zip(times["shared"], times[name], strict=True))

    met = equal and ratio("gloo") >= FASTER
    ours, gloo = (f"{1e3 * median(times[name]):.3f} ms" for name in ("shared", "gloo"))
    memory = ""
    if size == 2 and length == max(NUMBERS):
        memory = f"{ratio('memory'):.0%} of memory's ({4 * 4 * length / 1e6:.0f} MB)"
        met = met and ratio("memory") >= OF_MEMORY
    verdict = "ok" if met else "MISSED"
    table.add_row(str(size), f"{length:,}", gloo, ours, f"{ratio('gloo'):.1f}x", memory, str(equal), verdict)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--kept", action="store_true", help="lend nothing")
    arguments = parser.parse_args()
    table = Table("members", "numbers", "gloo", "shared", f">= {FASTER:g}x", f">= {OF_MEMORY:.0%}", "same bits", "")
    met = [measure(size, arguments.numbers, arguments.rounds, not arguments.kept, table) for size in arguments.members]
    Console(width=120).print(table)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
