"""Cost of a simulated run with real gradients over a bare training loop, and gradients a second.

The bare loop is plain PyTorch: gather a mini-batch, forward, backward, step of SGD. Both sides take turns, each round
gives one ratio, and the median counts. Times are CPU seconds of this process on one thread; other load on the machine
still matters through its caches. A second table has runs on all cores of the machine, by the clock, beside the same on
one. ``gradients.py [cost] [cores]``; exits with 1 if a bar is missed.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeAlias

import torch
from _priority import come_first
from rich.console import Console
from rich.table import Table
from torch import nn

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.gradients import TrainedNumerics
from polyrhythm.sim.job import build_job
from polyrhythm.telemetry import Meter
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Split, Task, epoch_order
from polyrhythm.training.models import cnn, mlp, seeded

ROUNDS, WORKERS, SAMPLES = 25, 16, 20_000

Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One row; a bar that is None is not checked."""

    name: str
    model: Callable[[], nn.Module]
    policy: str
    batch: int
    steps: int
    largest_ratio: float | None = None
    least_per_s: float | None = None


CASES = [
    Case("MLP 784-64-10, batch 16", partial(mlp, 1, 28), "asp", 16, 800, largest_ratio=1.25, least_per_s=5000),
    Case("MLP 784-64-10, batch 16", partial(mlp, 1, 28), "bsp", 16, 800, largest_ratio=1.25),
    Case("MLP 784-64-10, batch 16", partial(mlp, 1, 28), "k-sync:12", 16, 800),
    Case("MLP 784-64-10, batch 16", partial(mlp, 1, 28), "local:8", 16, 800),
    Case("CNN 8-16, 28x28, batch 32", partial(cnn, 1, 28), "asp", 32, 64, largest_ratio=1.1),
    Case("CNN 8-16, 28x28, batch 32", partial(cnn, 1, 28), "bsp", 32, 64, largest_ratio=1.1),
]


CORES = [
    Case("CNN 8-16, 28x28, batch 32", partial(cnn, 1, 28), "bsp", 32, 192, largest_ratio=1 / 1.7),
    Case("CNN 8-16, 28x28, batch 32", partial(cnn, 1, 28), "asp", 32, 192, largest_ratio=1 / 1.7),
]


def make_task(case: Case) -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 1, 28, 28, generator=generator)
    targets = torch.randint(0, 10, (SAMPLES,), generator=generator)
    return Task("random", Split(inputs, targets), Split(inputs[:1], targets[:1]), partial(seeded, case.model))


def simulated(case: Case, task: Task, clock: Clock = time.process_time, threads: int = 1) -> float:
    """Seconds a gradient of a run; building it is not counted."""
    training = TrainingConfig(learning_rate=0.001, batch_size=case.batch, samples=case.steps * case.batch)
    devices, compute = [Device(count=WORKERS, compute_s=1.0)], Compute(distribution="normal", deviation=0.2)
    scenario = Scenario(devices=devices, compute=compute, training=training)
    numerics = TrainedNumerics(task, training, WORKERS, seed=0, threads=threads)
    engine = Engine(build_job(scenario, parse_policy(case.policy), numerics, seed=0), Meter(None))
    return seconds(engine.run, clock) / engine.ledger.applied


def bare(case: Case, task: Task) -> float:
    """CPU seconds a gradient of the bare loop."""
    module = task.build(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001)
    order = epoch_order(SAMPLES, 0, 0)
    starts = [step * case.batch % (SAMPLES - case.batch) for step in range(case.steps)]

    def loop() -> None:
        for start in starts:
            inputs, targets = task.batch(order[start : start + case.batch])
            loss = task.loss(module(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()

    return seconds(loop, time.process_time) / case.steps


def seconds(function: Callable[[], None], clock: Clock) -> float:
    started = clock()
    function()
    return clock() - started


def measure(case: Case) -> tuple[float, float, float]:
    """Gradients a second simulated and bare, and the median ratio of their costs."""
    task = make_task(case)
    rounds = [(simulated(case, task), bare(case, task)) for _ in range(ROUNDS + 1)][1:]
    ours, theirs = (median(column) for column in zip(*rounds, strict=True))
    return 1 / ours, 1 / theirs, median(a / b for a, b in rounds)


def verdict(case: Case, per_s: float, ratio: float) -> str:
    if case.largest_ratio is None and case.least_per_s is None:
        return "-"
    slow = case.largest_ratio is not None and ratio > case.largest_ratio
    few = case.least_per_s is not None and per_s < case.least_per_s
    return "MISSED" if slow or few else "met"


def cost() -> bool:
    """Whether the bars of the first table are met."""
    table = Table("model", "policy", "simulated /s", "bare /s", "ratio", "bar", "", title=f"{WORKERS} workers")
    verdicts = []
    for case in CASES:
        per_s, bare_per_s, ratio = measure(case)
        verdicts.append(verdict(case, per_s, ratio))
        bars = [f"<= {case.largest_ratio}x"] if case.largest_ratio else []
        bars += [f">= {case.least_per_s:,.0f} /s"] if case.least_per_s else []
        figures = (f"{per_s:,.0f}", f"{bare_per_s:,.0f}", f"{ratio:.2f}x", ", ".join(bars) or "-", verdicts[-1])
        table.add_row(case.name, case.policy, *figures)
    Console(width=120).print(table)
    return "MISSED" not in verdicts


def cores() -> bool:
    """Whether those of the second are."""
    count = len(os.sched_getaffinity(0))
    table, verdicts = Table("model", "policy", "one core /s", f"{count} cores /s", "by", "bar", ""), []
    for case in CORES:
        task = make_task(case)
        rounds = [[simulated(case, task, time.perf_counter, n) for n in (1, count)] for _ in range(ROUNDS + 1)][1:]
        one, all_cores = (median(column) for column in zip(*rounds, strict=True))
        ratio = median(b / a for a, b in rounds)
        verdicts.append(verdict(case, 1 / all_cores, ratio))
        table.add_row(
            case.name,
            case.policy,
            f"{1 / one:,.0f}",
            f"{1 / all_cores:,.0f}",
            f"{1 / ratio:.2f}x",
            ">= 1.7x",
            verdicts[-1],
        )
    Console(width=120).print(table)
    return "MISSED" not in verdicts


PARTS = {"cost": cost, "cores": cores}


def main(names: list[str]) -> bool:
    """Whether all bars are met."""
    torch.set_num_threads(1)
    met = [PARTS[name]() for name in names or PARTS]
    return all(met)


if __name__ == "__main__":
    come_first()
    sys.exit(not main(sys.argv[1:]))
