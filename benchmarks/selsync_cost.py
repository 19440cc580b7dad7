"""What SelSync costs beside its exchanges (the paper's figure 8): Delta by window, flags by workers, SelDP by data set.

Prints three tables in processor time of this process, of the quickest of some rounds, since other work of the machine
only adds to it. What travels between workers is not here.

    python benchmarks/selsync_cost.py
"""

import sys
import time
from collections.abc import Callable
from random import Random

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from polyrhythm.core import Cluster, Joined, Report
from polyrhythm.policies import parse_policy
from polyrhythm.policies.selsync import Signal
from polyrhythm.training.data.partition import deal, parse_partition
from polyrhythm.training.data.task import epoch_order

PARAMETERS = {"ResNet-101": 44_500_000, "VGG-11": 126_700_000, "AlexNet": 61_100_000, "10 M": 10_000_000}
"""VGG-11 is the paper's message of 507 MB; the 10 M are those of examples/train_gpt.py."""
WINDOWS = (25, 50, 100, 200)
WORKERS = (2, 4, 8, 16, 32)
DATA = {"CIFAR": 50_000, "ImageNet": 1_281_167}
SHARDS = (4, 16)
ROUNDS = 7


def quickest(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, in the quickest round of so many calls."""
    spent = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(times):
            call()
        spent.append((time.process_time() - began_s) / times)
    return min(spent)


def change_by_window() -> Table:
    """Figure 8(a): the squared norm of a gradient, and Delta from the norms of a window."""
    table = Table("model", "squared norm", *(f"Delta, window {window}" for window in WINDOWS))
    deltas = [f"{1e6 * change(window):.1f} us" for window in WINDOWS]
    for name, parameters in PARAMETERS.items():
        gradient = torch.ones(parameters)
        norm_s = quickest(lambda gradient=gradient: torch.dot(gradient, gradient).item())  # type: ignore[misc]
        table.add_row(name, f"{1e3 * norm_s:.2f} ms", *deltas)
    return table


def change(window: int) -> float:
    rng, signal = Random(0), Signal()
    for _ in range(window):
        signal = signal.after(rng.lognormvariate(0, 0.5), window, 0.16)
    return quickest(lambda: signal.after(1.0, window, 0.16), 200)


def flags_by_workers() -> Table:
    """What every rank computes of a step's records: the flags of all, and whether anyone's is set."""
    table = Table("workers", "a step's decisions", "of them for one report")
    for workers in WORKERS:
        step_s = decisions(workers)
        table.add_row(str(workers), f"{1e6 * step_s:.0f} us", f"{1e6 * step_s / workers:.1f} us")
    return table


def decisions(workers: int) -> float:
    policy, rng = parse_policy("selsync:0.3"), Random(0)
    state, _ = policy.decide(policy.init(Cluster(workers)), Joined(tuple(range(workers)), 0.0))
    spent = []
    for step in range(1, 100):
        reports = [Report(each, step, float(step), grad_sq_norm=rng.lognormvariate(0, 0.5)) for each in range(workers)]
        began_s = time.process_time()
        for report in reports:
            state, _ = policy.decide(state, report)
        spent.append(time.process_time() - began_s)
    return min(spent[50:])


def partition_by_data() -> Table:
    """Figure 8(b): cutting a data set, and what a worker shuffles for an epoch."""
    table = Table("data set", "workers", "cut into chunks", "a worker's epoch, SelDP", "the shared epoch")
    partition = parse_partition("seldp")
    for name, samples in DATA.items():
        labels = np.zeros(samples)
        shared_s = quickest(lambda samples=samples: epoch_order.__wrapped__(samples, 0, 0))  # type: ignore[misc]
        for workers in SHARDS:
            cut_s = quickest(lambda labels=labels, workers=workers: deal(partition, labels, workers, 0))  # type: ignore[misc]
            dealt = deal(partition, labels, workers, 0)
            order_s = quickest(lambda dealt=dealt: dealt.order(1, 1))  # type: ignore[misc]
            table.add_row(name, str(workers), *(f"{1e3 * each:.2f} ms" for each in (cut_s, order_s, shared_s)))
    return table


def main() -> int:
    torch.set_num_threads(1)
    console = Console(width=160)
    for table in (change_by_window(), flags_by_workers(), partition_by_data()):
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
