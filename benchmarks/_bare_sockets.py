"""What the machine itself takes to tell every process what all have: Unix sockets and nothing around them.

Each process sleeps as the workers of the benchmark compute, so that those it waits for have to be woken up as theirs;
and it can keep a core busy after each exchange, as long as a worker does with the rest of its step.
"""

import socket
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from typing import Any

RECORD_BYTES = 18
Span = tuple[float, float]


def through_a_hub(workers: int, steps: int, sleep_s: float, busy_s: float = 0.0) -> list[list[Span]]:
    """Each sends its record to a further process, which answers with all: when each had its own, and when all."""
    ends = [socket.socketpair() for _ in range(workers)]
    coordinator = get_context("fork").Process(target=gather_and_answer, args=([ours for ours, _ in ends], steps))
    coordinator.start()
    spans = in_processes([partial(ask, theirs, workers) for _, theirs in ends], steps, sleep_s, busy_s)
    coordinator.join()
    return spans


def gather_and_answer(ends: list[socket.socket], steps: int) -> None:
    """The coordinator."""
    for _ in range(steps):
        records = b"".join(end.recv(RECORD_BYTES) for end in ends)
        for end in ends:
            end.sendall(records)


def ask(end: socket.socket, workers: int) -> None:
    """One exchange of a worker that has a coordinator."""
    end.sendall(bytes(RECORD_BYTES))
    end.recv(workers * RECORD_BYTES, socket.MSG_WAITALL)


def in_pairs(workers: int, steps: int, sleep_s: float, busy_s: float = 0.0) -> list[list[Span]]:
    """The same with a connection between every two, and nobody in between."""
    peers: list[list[socket.socket]] = [[] for _ in range(workers)]
    for one in range(workers):
        for other in range(one):
            ends = socket.socketpair()
            peers[one].append(ends[0])
            peers[other].append(ends[1])
    return in_processes([partial(tell, own) for own in peers], steps, sleep_s, busy_s)


def tell(peers: list[socket.socket]) -> None:
    """One exchange of a worker that has none."""
    for peer in peers:
        peer.sendall(bytes(RECORD_BYTES))
    for peer in peers:
        peer.recv(RECORD_BYTES, socket.MSG_WAITALL)


def in_processes(exchanges: list[Callable[[], None]], steps: int, *times_s: float) -> list[list[Span]]:
    """Spans of each process that sleeps and exchanges by turns."""
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in exchanges]
    processes = [
        context.Process(target=run, args=(exchange, steps, ours, *times_s))
        for exchange, (_, ours) in zip(exchanges, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    spans = [results.recv() for results, _ in pipes]
    for process in processes:
        process.join()
    return spans


def run(exchange: Callable[[], None], steps: int, results: Any, sleep_s: float, busy_s: float) -> None:
    """One process."""
    spans = []
    for _ in range(steps):
        time.sleep(sleep_s)
        start = time.perf_counter()
        exchange()
        spans.append((start, time.perf_counter()))
        end = time.process_time() + busy_s
        while time.process_time() < end:
            pass
    results.send(spans)
