"""Push and pull between hosts over slow links: network namespaces, with `tc` limiting what each host sends.

One worker and one parameter server with a model of 11 M parameters (44 MB) and a step of SGD, under the ASP policy.
Needs root and iproute2. Exits with 1 if a bar is missed:

- a push from its first byte until the permission to go on, and a pull, each take 90 % of the line rate or more;
- pulling while pushing (``--full-duplex``) is at least 1.5 times as fast as pushing, then pulling.

What plain TCP sockets make of the same link stands beside them, and what half precision saves has no bar: numbers are
converted before they are sent, which takes longer than sending them where the link is fast.
"""

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from statistics import median

import torch
from _hosts import network, python, result, started
from data_plane import PolyrhythmWorker, serve_polyrhythm
from rich.console import Console
from rich.table import Table

SIZE, ROUNDS = 11_000_000, 5
PLAIN_PORT = 5001
RATES_MBIT = (200, 1000)
LEAST_SHARE, LEAST_GAIN = 0.9, 1.5


def serve(address: str) -> None:
    """The server of one measurement; ends when it is killed."""
    here, there = Pipe()
    plain = socket.create_server(("", PLAIN_PORT))
    threading.Thread(target=answer_plainly, args=(plain,), daemon=True).start()
    print("serving", flush=True)
    serve_polyrhythm(address, True, there, token="bench")
    here.close()


def answer_plainly(listener: socket.socket) -> None:
    """Take so many bytes as a push has, and answer with one."""
    connection, _ = listener.accept()
    room = memoryview(bytearray(4 * SIZE))
    while True:
        left = room
        while left:
            left = left[connection.recv_into(left) :]
        connection.send(b"x")


def measure(address: str, compress: str, rounds: int) -> dict[str, float]:
    """Seconds of a push, a pull, both in turn and both at once; medians of rounds that take turns."""
    torch.set_num_threads(1)
    worker = PolyrhythmWorker(address, 0, SIZE, token="bench", compress=compress)

    def swap() -> None:
        worker.go.clear()
        worker.client.swap(worker.number, worker.gradient, worker.parameters)
        worker.number += 1
        worker.client.wait(lambda: worker.go, "while it waited for Go")

    plain, gradient = socket.create_connection((address.split(":")[1], PLAIN_PORT)), bytes(4 * SIZE)

    def send_plainly() -> None:
        plain.sendall(gradient)
        plain.recv(1)

    calls: dict[str, Callable[[], object]] = {
        "push": worker.decide,
        "pull": lambda: worker.client.pull(worker.parameters),
        "push, then pull": worker.exchange,
        "both at once": swap,
        "plain TCP": send_plainly,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(seconds[1:]) for name, seconds in times.items()}


def between_hosts(rate_mbit: int, compress: str, rounds: int) -> dict[str, float]:
    """What `measure` says on two hosts with links of this rate."""
    with network(2, rate_mbit) as (server, worker):
        address = f"tcp:{server.address}:5000"
        started(python(server, __file__, "serve", address))
        measured = python(worker, __file__, "measure", address, compress, str(rounds))
        seconds: dict[str, float] = result([measured])
    return seconds


def rows(rate_mbit: int, compress: str, seconds: dict[str, float]) -> list[tuple[str, str, str, str, bool]]:
    """What is shown of one measurement."""
    barred = compress == "none"
    head, shown = f"{rate_mbit} Mbit/s, {compress}", []
    for name in ("push", "pull", "plain TCP"):
        bits = SIZE * (16 if compress == "bf16" and name != "plain TCP" else 32)
        share = bits / seconds[name] / (rate_mbit * 1e6)
        bar = f">= {LEAST_SHARE:.0%} of the rate" if barred and name != "plain TCP" else ""
        shown.append((head, name, f"{seconds[name]:.3f} s, {share:.1%}", bar, share >= LEAST_SHARE or not bar))
    gain = seconds["push, then pull"] / seconds["both at once"]
    pair = f"{seconds['push, then pull']:.3f} s, {seconds['both at once']:.3f} s: {gain:.2f}x"
    bar = f">= {LEAST_GAIN}x" if barred else ""
    return [*shown, (head, "in turn, at once", pair, bar, gain >= LEAST_GAIN or not bar)]


def main(arguments: list[str]) -> bool:
    """Whether every bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(arguments).rounds
    table, met = Table("link, compression", "what", "figure", "bar"), True
    for rate_mbit in RATES_MBIT:
        for compress in ("none", "bf16"):
            for *cells, good in rows(rate_mbit, compress, between_hosts(rate_mbit, compress, rounds)):
                met &= good
                table.add_row(*cells, style=None if good else "red")
    Console(width=110).print(table)
    return met


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", address]:
            serve(address)
        case ["measure", address, compress, rounds]:
            print(json.dumps(measure(address, compress, int(rounds))))
        case arguments:
            sys.exit(0 if main(arguments) else 1)
