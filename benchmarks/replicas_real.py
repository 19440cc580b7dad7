"""Replicas on real workers: what ESync makes of a slow one, what SelSync's signal and flags cost, local SGD of others.

- esync: four workers whose computation is a sleep, one of them 20 times as slow: samples a second against BSP, and the
  share of its time that each worker computes.
- signal: the squared norm of all gradients over a step of ResNet-20 on mini-batches of 32 images.
- flags: from the moment at which the last of four workers has its norm until all know everyone's; beside it, what bare
  Unix sockets take on this machine, between as many processes or through a coordinator.
- local SGD: the same training as a session, with PyTorch's PostLocalSGDOptimizer and with Accelerate's LocalSGD, by
  turns: samples a second, accuracy, and lines of the script.

Exits with 1 if a bar is missed. ``replicas_real.py esync flags`` measures only these.
"""

import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import mean, median, stdev
from typing import Any, TypeVar

import _local_sgd
import torch
from _bare_sockets import Span, in_pairs, through_a_hub
from _jobs import job, join
from _rivals import free_port
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm
from polyrhythm.runtime.wire.protocol import MeasuredStep
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.testing.processes import run_workers
from polyrhythm.training.models import resnet

STEP_S, SLOWDOWN, ESYNC_SAMPLES, BSP_SAMPLES, BATCH = 0.03, 20, 4 * 700, 4 * 4 * 15, 4
LEAST_GAIN, LEAST_COMPUTING = 8.0, 0.85
SIGNAL_STEPS, LARGEST_SIGNAL = 12, 0.02
FLAG_STEPS, FLAG_SLEEP_S, LONGEST_FLAG_S = 500, 0.002, 150e-6
ROUNDS, LEAST_RATIO = 3, 1.0

Result = TypeVar("Result")


def sleeping(rank: int, place: str, samples: int, step_s: float, slowdown: float) -> tuple[int, float, float]:
    """Samples that this worker has processed, how long it took, and how long of that it computed."""
    join(rank, place)
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, seen = TensorDataset(torch.randn(samples, 8)), 0
    with polyrhythm.session(model, optimizer) as session:
        loader = session.loader(data, batch_size=BATCH)
        start = 0.0
        for (x,) in loader:
            start = start or time.perf_counter()
            time.sleep(step_s * (slowdown if rank == 0 else 1.0))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            seen += len(x)
        seconds = time.perf_counter() - start
    return seen, seconds, session.metrics["computed_s"]


def esync() -> list[tuple[str, str, str, bool]]:
    """Throughput over BSP, and the computing-time ratio of the worker that has the least."""
    rates = {}
    for policy, samples in (("esync", ESYNC_SAMPLES), ("bsp", BSP_SAMPLES)):
        workers = job(policy, sleeping, 4, policy, samples, STEP_S, SLOWDOWN)
        rates[policy] = sum(seen for seen, *_ in workers) / max(seconds for _, seconds, _ in workers)
        ratios = [computed / seconds for _, seconds, computed in workers]
        if policy == "esync":
            computing = ratios
    gain = rates["esync"] / rates["bsp"]
    shown = ", ".join(f"{ratio:.2f}" for ratio in computing)
    return [
        ("ESync over BSP, one of four 20 times as slow", f"{gain:.1f} x", ">= 8 x", gain >= LEAST_GAIN),
        ("computing-time ratio of each worker", shown, ">= 0.85", min(computing) >= LEAST_COMPUTING),
    ]


def signal() -> list[tuple[str, str, str, bool]]:
    """Share of a step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet(3, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replica = ScriptReplica(model, optimizer)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    shares = []
    for _ in range(SIGNAL_STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        computed = time.perf_counter()
        replica.grad_sq_norm()
        shares.append((time.perf_counter() - computed) / (computed - start))
    share = median(shares)
    return [("SelSync's signal over a step of ResNet-20", f"{100 * share:.2f} %", "<= 2 %", share <= LARGEST_SIGNAL)]


def flagging(rank: int, place: str) -> tuple[list[Span], list[Span], float]:
    """Spans from this worker's norm until it knows everyone's: of exchanges alone, then in steps; CPU s of a step."""
    alone: list[Span] = []
    in_steps: list[Span] = []
    exchange = DDPExchange.exchange_records
    busy_s = 0.0

    def timed(self: DDPExchange, own: MeasuredStep) -> bytes:
        nonlocal busy_s
        while len(alone) < FLAG_STEPS:
            time.sleep(FLAG_SLEEP_S)
            alone.append(span(lambda: exchange(self, own))[0])
            busy_s = -time.process_time()
        in_steps.append((found := span(lambda: exchange(self, own)))[0])
        return found[1]

    DDPExchange.exchange_records = timed  # type: ignore[method-assign]
    sleeping(rank, place, 4 * BATCH * FLAG_STEPS, FLAG_SLEEP_S, 1.0)
    return alone, in_steps, (busy_s + time.process_time()) / FLAG_STEPS


def span(act: Callable[[], Result]) -> tuple[Span, Result]:
    """When it began and ended, and what came out."""
    start = time.perf_counter()
    result = act()
    return (start, time.perf_counter()), result


def flags() -> list[tuple[str, str, str, bool]]:
    """From the moment at which the last worker has its norm until everyone knows all.

    The bar is for exchanges alone. In steps a worker that was woken up goes on with its step, and where there are fewer
    cores than workers the others wait for it: there the floor is that of bare sockets with as much work after them.
    """
    by_worker = job("flags", flagging, 4, "selsync:inf")
    alone, in_steps = known_after([found[0] for found in by_worker]), known_after([found[1] for found in by_worker])
    busy_s = mean(found[2] for found in by_worker)
    bare, coordinator = (known_after(way(4, FLAG_STEPS, FLAG_SLEEP_S)) for way in (in_pairs, through_a_hub))
    busy = known_after(in_pairs(4, FLAG_STEPS, FLAG_SLEEP_S, busy_s))
    return [
        ("flag exchange of 4 workers, p50", f"{1e6 * alone:.0f} us", "<= 150 us", alone <= LONGEST_FLAG_S),
        ("over bare sockets between every two", f"{alone / bare:.2f} x of {1e6 * bare:.0f} us", "", True),
        ("over bare sockets and a coordinator", f"{alone / coordinator:.2f} x of {1e6 * coordinator:.0f} us", "", True),
        (f"in steps of {1e3 * busy_s:.1f} ms CPU on {os.cpu_count()} cores", f"{1e6 * in_steps:.0f} us", "", True),
        ("over bare sockets with as much work", f"{in_steps / busy:.2f} x of {1e6 * busy:.0f} us", "", True),
    ]


def known_after(by_worker: Sequence[Sequence[Span]]) -> float:
    """Median of the seconds from the start of the last worker until everyone knows all."""
    spans: list[float] = [
        max(known for _, known in step) - max(start for start, _ in step) for step in zip(*by_worker, strict=True)
    ]
    return median(spans)


def script_lines(script: Callable[..., Any]) -> int:
    """Lines of code."""
    lines = inspect.getsource(script).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in lines)


def local_sgd() -> list[tuple[str, str, str, bool]]:
    """Ours over each of the others, by rounds."""
    rates: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for script in (_local_sgd.session, _local_sgd.post_local_sgd, _local_sgd.accelerate):
            name = script.__name__
            if script is _local_sgd.session:
                results = job(f"local-{number}", script, 2, f"local:{_local_sgd.H}")
            else:
                results = run_workers(script, 2, str(free_port()), timeout_s=300)
            rates.setdefault(name, []).append(sum(rate for rate, _ in results))
            accuracies.setdefault(name, []).append(results[0][1])
    rows = []
    ours = accuracies["session"]
    for name in ("post_local_sgd", "accelerate"):
        ratio = median(a / b for a, b in zip(rates["session"], rates[name], strict=True))
        rows.append((f"throughput of a session over {name}", f"{ratio:.2f} x", ">= 1.00 x", ratio >= LEAST_RATIO))
        noise = 2 * max(stdev(ours), stdev(accuracies[name]), 0.005)
        difference = mean(ours) - mean(accuracies[name])
        figure = f"{mean(ours):.3f}, {mean(accuracies[name]):.3f}"
        rows.append((f"accuracies, session and {name}", figure, "within noise", difference >= -noise))
        lines = script_lines(_local_sgd.session), script_lines(getattr(_local_sgd, name))
        rows.append((f"lines, session and {name}", f"{lines[0]}, {lines[1]}", "fewer", lines[0] < lines[1]))
    return rows


PARTS = {"esync": esync, "signal": signal, "flags": flags, "local-sgd": local_sgd}


def main(names: list[str]) -> bool:
    """Whether every bar was met."""
    table = Table("what", "figure", "bar")
    met = True
    for name in names or PARTS:
        for what, figure, bar, good in PARTS[name]():
            met &= good
            table.add_row(what, figure, bar, style=None if good else "red")
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
