"""Parameter servers in 1, 2 and 4 processes: pushes of 44 MB a second, with a step of the optimizer and the pull after.

Each push goes through shared memory under ASP, with momentum, so that the servers add up, step and are read; worker
and servers are processes as in a job. The numbers of shards take turns, each round gives one ratio to one shard, and
the median counts. Processor time says how much of it is the servers' and how much the workers': what is shared out
among more processes than there are cores cannot be faster. Exits with 1 if two shards are slower than one for one
worker, who leaves a core to them.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import torch
from _rivals import RATE, SPAWN
from data_plane import AspServer, Go
from rich.console import Console
from rich.table import Table

from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.shard_protocol import FromShard, Hello, Layout, OptimizerSpec, Parameter
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.optimizer import OptimizerState

SHARDS, WORKERS, SIZE, ROUNDS, PUSHES = (1, 2, 4), (1, 2), 11_000_000, 7, 10
LEAST = 1.0
"""What two shards are to one at least, for one worker."""


class ShardedServer(AspServer):
    def __init__(self, job: str, shards: int) -> None:
        super().__init__(f"unix:@polyrhythm-{job}", steps=True, job=job)
        self.group = ShardGroup(shards, self)
        here = self.group.start_processes(JobConfig(job=job, shards=shards), self.loop, sys.exit)
        self.addresses = [f"unix:@polyrhythm-{job}", *(here[0] if here else ())]


def serve(job: str, shards: int, ready: Connection) -> None:
    torch.set_num_threads(1)
    server = ShardedServer(job, shards)
    ready.send((os.getpid(), server.addresses))
    server.loop.run()


class Worker:
    """Push, wait for the permission to go on, pull."""

    def __init__(self, job: str, addresses: Sequence[str], rank: int) -> None:
        self.go: list[Go] = []
        self.client = ShardClient(Loop(), rank, self.go.append)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | Go)
        for address in addresses:
            self.client.connect(address, Hello(job, "worker", rank), decoder)
        self.client.open(Layout(((Parameter("w", (SIZE,)),),)), OptimizerSpec("SGD", {"lr": RATE, "momentum": 0.9}))
        if rank == 0:
            self.client.upload(torch.zeros(SIZE), OptimizerState({}, {}), 0)
        self.gradient, self.parameters, self.number = torch.ones(SIZE), torch.empty(SIZE), 0

    def exchange(self) -> None:
        self.go.clear()
        self.client.push(self.number, self.gradient)
        self.number += 1
        self.client.wait(lambda: self.go, "while it waited for Go")
        self.client.pull(self.parameters, self.go[0].version)


def work(job: str, addresses: Sequence[str], rank: int, orders: Connection) -> None:
    torch.set_num_threads(1)
    worker = Worker(job, addresses, rank)
    orders.send(None)
    while count := orders.recv():
        used_s = time.process_time()
        for _ in range(count):
            worker.exchange()
        orders.send(time.process_time() - used_s)


class Measured(NamedTuple):
    """Of one push: seconds by the clock, processor time of all servers, and of the worker."""

    seconds: float
    servers_s: float
    worker_s: float


class Job:
    """Servers and workers that push when told to."""

    def __init__(self, shards: int, workers: int, stack: ExitStack) -> None:
        job = f"bench-{os.getpid()}-{shards}-{workers}"
        here, there = SPAWN.Pipe()
        server = SPAWN.Process(target=serve, args=(job, shards, there))
        server.start()
        stack.callback(server.kill)
        self._server, addresses = here.recv()
        self._workers = [SPAWN.Pipe() for _ in range(workers)]
        for rank, (orders, theirs) in enumerate(self._workers):
            process = SPAWN.Process(target=work, args=(job, addresses, rank, theirs))
            process.start()
            stack.callback(process.kill)
            orders.recv()

    def push(self, count: int) -> Measured:
        began_s, before_s = time.perf_counter(), self._servers_s()
        for orders, _ in self._workers:
            orders.send(count)
        used_s = sum(orders.recv() for orders, _ in self._workers)
        pushes = count * len(self._workers)
        took_s = time.perf_counter() - began_s
        return Measured(took_s / pushes, (self._servers_s() - before_s) / pushes, used_s / pushes)

    def _servers_s(self) -> float:
        """Of the coordinator's process and of those that it has started."""
        children = Path(f"/proc/{self._server}/task/{self._server}/children").read_text().split()
        return sum(processor_s(int(process)) for process in (self._server, *children))


def processor_s(process: int) -> float:
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def compare(workers: int, shards: Sequence[int], rounds: int, pushes: int, table: Table) -> bool:
    with ExitStack() as stack:
        jobs = {count: Job(count, workers, stack) for count in shards}
        for job in jobs.values():
            job.push(3)
        made = [{count: job.push(pushes) for count, job in jobs.items()} for _ in range(rounds)]
    met = True
    for count in shards:
        ratio = median(each[shards[0]].seconds / each[count].seconds for each in made)
        figures = [median(getattr(each[count], name) for each in made) for name in Measured._fields]
        barred = workers == 1 and count == 2
        met &= ratio >= LEAST or not barred
        cells = [f"{1 / figures[0]:.1f}/s", *(f"{1e3 * figure:.1f} ms" for figure in figures), f"{ratio:.2f}x"]
        table.add_row(str(workers), str(count), *cells, f">= {LEAST:g}x" if barred else "")
    return met


def main() -> bool:
    """Whether the bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pushes", type=int, default=PUSHES, help="of a worker in a round")
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    chosen = parser.parse_args()
    table = Table("workers", "shards", "pushes", "a push", "servers' time", "worker's time", "to the first", "bar")
    met = [compare(workers, chosen.shards, chosen.rounds, chosen.pushes, table) for workers in chosen.workers]
    Console(width=110).print(table)
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
