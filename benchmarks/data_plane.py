"""Push and pull through the parameter server against what else could carry them, and how fast it decides.

One exchange pushes a gradient of 4 or 44 MB and pulls as many bytes of parameters, on this host. Every contender is a
client process with its server; they take turns, each round gives one ratio, and the median counts. Two comparisons:

- transport: the server takes the gradient and answers with parameters, without an optimizer step. Against two copies
  in one core's memory, and gloo's send and recv. The two copies need three vectors, since the second one reads what the
  first has written; gradient, slot, parameters and where they go are four, and copies between those are shown beside.
- server: with a step of SGD. Against a parameter server on torch.distributed.rpc as in PyTorch's tutorial "Implementing
  Batch RPC Processing Using Asynchronous Executions" (gradients go as an argument, the model comes back), and one in a
  Ray actor as in Ray's example "Parameter server", if ray is installed (`pip install --group bench`).

Then small gradients under ASP, with the policy in the loop: pushes a second from four workers, and the round trip from
a push to the permission to go on; beside each what bare sockets reach on this machine, whose server sends back what
comes. Exits with 1 if a bar is missed.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import msgspec
import torch
from _rivals import (
    RATE,
    SPAWN,
    EchoWorker,
    Opener,
    copy_of_two,
    free_port,
    gloo,
    memory_copy,
    ray_actor,
    serve_echo,
    start_server,
    torch_rpc,
)
from rich.console import Console
from rich.table import Table

from polyrhythm.core import Proceed, Report, Sync
from polyrhythm.policies import ASP
from polyrhythm.runtime.server.pushes import PushMatcher
from polyrhythm.runtime.server.shard_group import ShardGroup, WorkerConnection
from polyrhythm.runtime.wire.connection import Channel, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import Acceptor
from polyrhythm.runtime.wire.shard_protocol import (
    Apply,
    Drop,
    FromShard,
    Hello,
    Layout,
    OptimizerSpec,
    Parameter,
    ShardMessage,
    ToShard,
    WeightedGradient,
)
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.optimizer import OptimizerState

ROUNDS, SMALL, SMALL_PUSHES, SMALL_WORKERS = 9, 16, 4000, 4


# -- Polyrhythm --------------------------------------------------------------------------------------------------------


class Go(ShardMessage):
    """The permission to read `version` and go on."""

    version: int


class AspServer(PushMatcher):
    """A coordinator with the ASP policy and one shard; without `steps` it drops each gradient instead of applying
    it.
    """

    def __init__(self, address: str, steps: bool, token: str = "", job: str = "bench") -> None:
        super().__init__(lambda *_: None)
        self.loop = Loop()
        self.steps = steps
        self.policy = ASP()
        self.group = ShardGroup(1, self)
        self.channels: dict[int, Channel] = {}
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToShard)
        Acceptor(self.loop, listen(address), job, token, decoder, self.admit)

    def admit(self, channel: Channel, hello: Hello) -> WorkerConnection:
        self.channels[hello.rank] = channel
        return WorkerConnection(self.group.service, hello.rank, channel)

    def drop(self, worker: int, number: int) -> None:
        """Of no step is anything told beside its gradient."""

    def arrived(self, worker: int, number: int) -> None:
        _, decisions = self.policy.decide(None, Report(worker, number + 1, self.loop.clock()))
        for decision in decisions:
            match decision:
                case Sync() if self.steps:
                    update = Apply((WeightedGradient(worker, number),))
                    self.group.tell_others(update)
                    self.group.service.apply(update)
                case Sync():
                    self.group.drop(Drop(((worker, number),)))
                case Proceed():
                    assert self.group.service.shard is not None
                    self.channels[worker].send(Go(self.group.service.shard.version))


def serve_polyrhythm(address: str, steps: bool, ready: Connection, token: str = "") -> None:
    torch.set_num_threads(1)
    server = AspServer(address, steps, token)
    ready.send(None)
    server.loop.run()


def serve_small(address: str, ready: Connection) -> None:
    """With steps of the optimizer."""
    serve_polyrhythm(address, True, ready)


class PolyrhythmWorker:
    """One worker: push, wait for Go, pull."""

    def __init__(self, address: str, rank: int, size: int, token: str = "", compress: str = "none") -> None:
        self.go: list[Go] = []
        self.client = ShardClient(Loop(), rank, self.go.append)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | Go)
        self.client.connect(address, Hello("bench", "worker", rank), decoder, token)
        layout = Layout(((Parameter("w", (size,)),),))
        self.client.open(layout, OptimizerSpec("SGD", {"lr": RATE}), parse_compression(compress))
        if rank == 0:
            self.client.upload(torch.zeros(size), OptimizerState({}, {}), 0)
        self.gradient, self.parameters, self.number = torch.ones(size), torch.empty(size), 0

    def decide(self) -> int:
        """Push and wait for the permission to go on; the version to read."""
        self.go.clear()
        self.client.push(self.number, self.gradient)
        self.number += 1
        self.client.wait(lambda: self.go, "while it waited for Go")
        return self.go[0].version

    def exchange(self) -> None:
        self.client.pull(self.parameters, self.decide())


def polyrhythm(steps: bool, carrier: str = "unix") -> Opener:
    def open_worker(size: int, stack: ExitStack) -> Callable[[], None]:
        name = f"unix:@polyrhythm-bench-{os.getpid()}"
        address = name if carrier == "unix" else f"tcp:127.0.0.1:{free_port()}"
        token = "" if carrier == "unix" else "bench"
        start_server(partial(serve_polyrhythm, token=token), address, steps, stack=stack)
        return PolyrhythmWorker(address, 0, size, token).exchange

    return open_worker


# -- contenders in processes of their own ------------------------------------------------------------------------------

OPENERS: dict[str, Opener] = {
    "memory copy": memory_copy,
    "memory copy, four vectors": copy_of_two,
    "polyrhythm": polyrhythm(steps=False),
    "polyrhythm, TCP": polyrhythm(steps=False, carrier="tcp"),
    "gloo": gloo,
    "polyrhythm, SGD": polyrhythm(steps=True),
    "torch rpc, SGD": torch_rpc,
    "ray actor, SGD": ray_actor(tuned=False),
    "ray actor tuned, SGD": ray_actor(tuned=True),
}


def run_client(name: str, size: int, orders: Connection) -> None:
    """Time exchanges when told how many to make; end at zero."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        exchange = OPENERS[name](size, stack)
        for _ in range(3):
            exchange()
        orders.send(None)
        while repeats := orders.recv():
            orders.send(median(timed(exchange) for _ in range(repeats)))
    os._exit(0)  # gloo and rpc would say goodbye to servers that are gone


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Contender:
    """A client process that makes exchanges when it is its turn."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._orders, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=run_client, args=(name, size, there))
        self._process.start()
        there.close()
        self._orders.recv()

    def exchange_s(self, repeats: int) -> float:
        self._orders.send(repeats)
        return float(self._orders.recv())

    def close(self) -> None:
        self._orders.send(0)
        self._process.join()


# -- comparisons -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """`ours` is at least `factor` times as fast as `other`."""

    ours: str
    other: str
    factor: float


TRANSPORT = [Bar("polyrhythm", "memory copy", 0.5), Bar("polyrhythm", "gloo", 3.0)]
SERVER = [Bar("polyrhythm, SGD", "torch rpc, SGD", 5.0), Bar("polyrhythm, SGD", "ray actor, SGD", 5.0)]
EXTRA_TRANSPORT, EXTRA_SERVER = ["memory copy, four vectors", "polyrhythm, TCP"], ["ray actor tuned, SGD"]
"""Shown without a bar."""


def compare(size: int, bars: Sequence[Bar], extra: Sequence[str], rounds: int, table: Table) -> bool:
    """Rounds of all contenders in turn; whether every bar holds."""
    names = list(dict.fromkeys([name for bar in bars for name in (bar.ours, bar.other)] + list(extra)))
    contenders = [Contender(name, size) for name in names]
    repeats = max(3, 10**7 // size)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for contender in contenders:
            times[contender.name].append(contender.exchange_s(repeats))
    for contender in contenders:
        contender.close()
    for name in names:
        rate = 8 * size / median(times[name]) / 1e9
        table.add_row(f"{4 * size / 1e6:.0f} MB", name, f"{1e3 * median(times[name]):.2f} ms", f"{rate:.1f} GB/s", "")
    return all([holds(bar, times, table) for bar in bars])  # noqa: C419 - every row is shown


def holds(bar: Bar, times: dict[str, list[float]], table: Table) -> bool:
    ratio = median(other / ours for ours, other in zip(times[bar.ours], times[bar.other], strict=True))
    return verdict(table, f"{bar.ours} : {bar.other}", f"{ratio:.2f}x", f">= {bar.factor:g}x", ratio >= bar.factor)


def verdict(table: Table, what: str, value: str, bar: str, met: bool) -> bool:
    table.add_row("", what, value, bar, "ok" if met else "MISSED")
    return met


@dataclass(frozen=True)
class Small:
    """A server of small messages, ``serve(address, ready)``, and its client, ``opens(address, rank, size)``."""

    serve: Callable[[str, Connection], None]
    opens: Callable[[str, int, int], "PolyrhythmWorker | EchoWorker"]


OURS, BARE = Small(serve_small, PolyrhythmWorker), Small(serve_echo, EchoWorker)


def run_small(small: Small, address: str, rank: int, orders: Connection) -> None:
    """Push small gradients when told how many; answer with the time of each."""
    torch.set_num_threads(1)
    worker = small.opens(address, rank, SMALL)
    orders.send(None)
    while count := orders.recv():
        orders.send([timed(worker.decide) for _ in range(count)])


def small_pushes(small: Small, workers: int, rounds: int, count: int) -> tuple[float, float]:
    """Pushes a second of all workers, and the median round trip in seconds; medians over rounds."""
    with ExitStack() as stack:
        address = f"unix:@polyrhythm-bench-small-{os.getpid()}-{small.serve.__name__}"
        start_server(small.serve, address, stack=stack)
        pipes = [SPAWN.Pipe() for _ in range(workers)]
        for rank, (here, there) in enumerate(pipes):
            client = SPAWN.Process(target=run_small, args=(small, address, rank, there))
            client.start()
            here.recv()
            stack.callback(client.join)
            stack.callback(here.send, 0)
        rounds_s, trips = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            for here, _ in pipes:
                here.send(count)
            trips.append(median(trip for here, _ in pipes for trip in here.recv()))
            rounds_s.append(time.perf_counter() - start)
    return workers * count / median(rounds_s), median(trips)


def show_small(rounds: int, table: Table) -> bool:
    """Both figures, and those of bare sockets on this machine; whether the bars hold."""
    rate, trip = (
        small_pushes(OURS, SMALL_WORKERS, rounds, SMALL_PUSHES)[0],
        small_pushes(OURS, 1, rounds, SMALL_PUSHES)[1],
    )
    bare, floor = (
        small_pushes(BARE, SMALL_WORKERS, rounds, SMALL_PUSHES)[0],
        small_pushes(BARE, 1, rounds, SMALL_PUSHES)[1],
    )
    table.add_row("", f"bare sockets, {SMALL_WORKERS} clients", f"{bare:,.0f}/s", f"{rate / bare:.2f} of it", "")
    fast = verdict(table, f"small pushes, {SMALL_WORKERS} workers", f"{rate:,.0f}/s", ">= 15,000/s", rate >= 15_000)
    table.add_row("", "bare round trip, p50", f"{1e6 * floor:.0f} us", f"{trip / floor:.1f} of it", "")
    return verdict(table, "decision round trip, p50", f"{1e6 * trip:.0f} us", "<= 150 us", trip <= 150e-6) and fast


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = arguments.parse_args().rounds
    table = Table("size", "what", "value", "rate or bar", "")
    met = []
    server_bars, extra = (SERVER, EXTRA_SERVER) if find_spec("ray") else (SERVER[:1], [])
    for size in (1_000_000, 11_000_000):
        met.append(compare(size, TRANSPORT, EXTRA_TRANSPORT, rounds, table))
        met.append(compare(size, server_bars, extra, rounds, table))
    if len(server_bars) < len(SERVER):
        table.add_row("", "ray actor, SGD", "not measured", "pip install --group bench", "")
    met.append(show_small(rounds, table))
    Console(width=100).print(table)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
