"""Real jobs: what a live switch costs, how asynchronous training scales, and how much memory a worker needs.

- switch: two workers in synchronous mode switch to ASP and back, again and again, in the middle of an epoch. What a
  switch costs is the longest time that a worker spends between the two steps around it, less a usual step.
- scaling: workers whose computation is a sleep, so that two cores can play four; samples a second of 4 ASP workers
  against 4 times those of 1.
- memory: proportional set size of one worker in training over the same loop under DistributedDataParallel.

Exits with 1 if a bar is missed.
"""

import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from _jobs import job, join
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import polyrhythm
from polyrhythm.testing.processes import run_workers

SWITCHES, STEPS_BETWEEN = 12, 25
LONGEST_SWITCH_S, LEAST_SCALING = 0.1, 0.95
COMPUTE_S, SCALING_STEPS, SCALING_ROUNDS = 0.02, 150, 5
MEMORY_STEPS = 20


def mlp(hidden: int) -> nn.Module:
    """One hidden layer; 0.3 M parameters with 400 units."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def data(samples: int) -> TensorDataset:
    """Noise."""
    return TensorDataset(
        torch.randn(256, 784).repeat(-(-samples // 256), 1)[:samples], torch.randint(0, 10, (samples,))
    )


def train(model: nn.Module, sgd: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step."""
    sgd.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    sgd.step()


# -- the switch --------------------------------------------------------------------------------------------------------


def switch_worker(rank: int, address: str) -> list[tuple[float, str]]:
    """When each step ended, with all that comes after it, and under which policy it began."""
    join(rank, address)
    model = mlp(400)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps: list[tuple[float, str]] = []
    with polyrhythm.session(model, sgd) as session:
        loader = session.loader(data(2 * 32 * STEPS_BETWEEN * (SWITCHES + 2)), batch_size=32)
        for number, (x, y) in enumerate(loader):
            if rank == 0 and number % STEPS_BETWEEN == STEPS_BETWEEN - 1:
                session.switch("bsp" if session.policy == "asp" else "asp")
            policy = session.policy
            train(model, sgd, x, y)
            steps.append((time.perf_counter(), policy))
    return steps


def switch_costs(workers: list[list[tuple[float, str]]]) -> tuple[list[float], float]:
    """Cost of each switch, the slowest worker's, and the usual step."""
    by_worker, usual = [], []
    for steps in workers:
        spans = [after - before for (before, _), (after, _) in pairwise(steps)]
        changes = [index for index, ((_, before), (_, after)) in enumerate(pairwise(steps)) if before != after]
        usual.append(median(spans))
        # The switch happens after the last step of the old policy, which ends the span before the change.
        by_worker.append([spans[index - 1] - median(spans) for index in changes if index])
    return [max(costs) for costs in zip(*by_worker, strict=False)], max(usual)


# -- scaling -----------------------------------------------------------------------------------------------------------


def scaling_worker(rank: int, address: str, samples: int) -> tuple[float, int]:
    """Seconds of an epoch after a first one that warms up, and the samples that this worker processed in it."""
    join(rank, address)
    model = mlp(32)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with polyrhythm.session(model, sgd, epochs=2) as session:
        loader = session.loader(data(samples), batch_size=16)
        for _ in range(2):
            start, seen = time.perf_counter(), 0
            for x, y in loader:
                time.sleep(COMPUTE_S)
                train(model, sgd, x, y)
                seen += len(x)
            seconds = time.perf_counter() - start
    return seconds, seen


def scaling() -> list[float]:
    """Throughput of four workers over four times that of one, by round."""
    ratios = []
    for number in range(SCALING_ROUNDS):
        rates = {}
        for workers in (1, 4):
            done = job(f"scaling-{number}-{workers}", scaling_worker, workers, "asp", 16 * SCALING_STEPS * workers)
            rates[workers] = sum(seen for _, seen in done) / max(seconds for seconds, _ in done)
        ratios.append(rates[4] / (4 * rates[1]))
    return ratios


# -- memory ------------------------------------------------------------------------------------------------------------


def resident_mb() -> float:
    """Proportional set size of this process; shared pages count in part."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("Pss:"))


def memory_worker(rank: int, address: str) -> float:
    """Megabytes in training in a session."""
    join(rank, address)
    model = mlp(13_800)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with polyrhythm.session(model, sgd) as session:
        for number, (x, y) in enumerate(session.loader(data(16 * 2 * (MEMORY_STEPS + 5)), batch_size=16)):
            train(model, sgd, x, y)
            if number == MEMORY_STEPS:
                return resident_mb()
    raise AssertionError("the epoch is longer than that")


def native_memory_worker(rank: int, port: int) -> float:
    """Megabytes in training under DistributedDataParallel."""
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=2)
    model = DistributedDataParallel(mlp(13_800))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = data(16)
    for _ in range(MEMORY_STEPS + 1):
        train(model, sgd, *dataset[:16])
    used = resident_mb()
    dist.destroy_process_group()
    return used


def main() -> bool:
    """Whether every bar was met."""
    table = Table("what", "figure", "bar")
    met = True

    def row(what: str, figure: str, bar: str, good: bool) -> None:
        nonlocal met
        met &= good
        table.add_row(what, figure, bar, style=None if good else "red")

    costs, step_s = switch_costs(job("switch", switch_worker, 2, "bsp"))
    row("live switch, median", f"{1000 * median(costs):.1f} ms", "<= 100 ms", median(costs) <= LONGEST_SWITCH_S)
    row("live switch, longest", f"{1000 * max(costs):.1f} ms (a step: {1000 * step_s:.1f} ms)", "", True)
    ratios = scaling()
    row("ASP, 1 to 4 workers", f"{100 * median(ratios):.1f} % of ideal", ">= 95 %", median(ratios) >= LEAST_SCALING)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    native = max(run_workers(native_memory_worker, 2, store.port, timeout_s=300))
    copy_mb = sum(p.numel() for p in mlp(13_800).parameters()) * 4 / 2**20
    for policy in ("bsp", "asp"):
        extra = max(job(f"memory-{policy}", memory_worker, 2, policy)) - native
        good = extra <= copy_mb * 1.05
        row(f"memory over DDP, {policy}", f"{extra:.0f} MB", f"<= {copy_mb:.0f} MB, one copy", good)
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
