"""Balanced BSP beside BSP: samples a second over the sum of what the workers' speeds would give.

    python benchmarks/balanced.py               all parts (some five minutes)
    python benchmarks/balanced.py simulated     one part: simulated, learning, real or equal

- simulated: 8 workers of two generations, 3.5x / 1x, one of which becomes 4x slower for a while.
- learning: loss and accuracy at equal samples, paired over 20 seeds, and other policies' time to the same accuracy.
- real: 4 workers whose computation is a sleep; one takes 4x as long for each sample, until it does not any more.
- equal: the same with equal workers, balanced over BSP.

Exits with 1 if a bar is missed: 95 % of all speeds from the 20th step after the start and after each change on; the
loss of BSP within two standard errors; with equal workers at most 1.01 times BSP's time.
"""

import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import torch
from _jobs import job, join
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm
from polyrhythm.core import Sync, Trace
from polyrhythm.sim import Device, Faults, Scenario, Straggler, TimingWorkload, simulate
from polyrhythm.training.config import TrainingConfig

POLICIES = ("bsp", "balanced")
LEAST, LONGEST, SETTLED = 0.95, 1.01, 20
SEEDS = 20


class Stretch(NamedTuple):
    """Steps between two changes, and the workers' speeds in it, in mini-batches a second."""

    name: str
    first: int
    end: int
    speeds: tuple[float, ...]


def share(ends_s: list[float], stretch: Stretch) -> float:
    """Mini-batches a second over all speeds, once it has settled."""
    first, last = stretch.first + SETTLED, stretch.end - 1
    return len(stretch.speeds) * (last - first) / (ends_s[last] - ends_s[first]) / sum(stretch.speeds)


def judge(console: Console, title: str, stretches: list[Stretch], ends_s: dict[str, list[float]]) -> bool:
    """A row for each stretch; whether the balanced one is good in all."""
    table = Table(title, "all speeds, batches/s", *(f"{policy}, of all speeds" for policy in ends_s))
    good = True
    for stretch in stretches:
        shares = {policy: share(ends, stretch) for policy, ends in ends_s.items()}
        table.add_row(stretch.name, f"{sum(stretch.speeds):.2f}", *(f"{value:.1%}" for value in shares.values()))
        good &= shares["balanced"] >= LEAST
    console.print(table)
    return good


# -- simulated ---------------------------------------------------------------------------------------------------------

GENERATIONS = (1.0,) * 4 + (1 / 3.5,) * 4


def simulated(console: Console) -> bool:
    slow = (0.25, *GENERATIONS[1:])
    stretches = [
        Stretch("3.5x / 1x, from the start", 0, 60, GENERATIONS),
        Stretch("a fast one 4x slower", 60, 120, slow),
        Stretch("and fast again", 120, 180, GENERATIONS),
    ]
    scenario = Scenario(
        devices=[Device(count=4, compute_s=1.0), Device(count=4, compute_s=3.5)],
        faults=Faults(stragglers=[Straggler(workers=[0], start_step=60, steps=60, slowdown=4.0)]),
        workload=TimingWorkload(batch_size=64, samples=180 * 8 * 64),
    )
    return judge(console, "simulated", stretches, {policy: rounds(scenario, policy) for policy in POLICIES})


def rounds(scenario: Scenario, policy: str) -> list[float]:
    """When each step was over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        simulate(scenario, policy, trace=path)
        entries = Trace.load(path).entries
    return [0.0, *(event.time_s for event, decisions in entries if any(isinstance(d, Sync) for d in decisions))]


# -- learning ----------------------------------------------------------------------------------------------------------

OTHERS = ("bsp", "balanced", "asp", "ssp:3", "k-sync:6", "backup:2", "esync", "local:8")
TARGET = 0.93
ROUNDING = 1e-4
"""What sums in another order may add to the difference of two losses."""


def learning(console: Console) -> bool:
    """On digits, with one learning rate.

    Epochs divide evenly: BSP gives the samples of a smaller mini-batch at the end of one more weight, and is not the
    mean over all samples there.
    """
    scenario = Scenario(
        devices=[Device(count=4, compute_s=0.1), Device(count=4, compute_s=0.35)],
        training=TrainingConfig(batch_size=16, train_samples=11 * 8 * 16, epochs=12, learning_rate=0.02),
    )
    table = Table("3.5x / 1x, digits", f"time to {TARGET:.0%}, s", "reached", "accuracy at the end", "loss - BSP's")
    losses: dict[str, list[float]] = {}
    for policy in OTHERS:
        results = [simulate(scenario, policy, seed=seed, target=TARGET) for seed in range(SEEDS)]
        losses[policy] = [result.final_loss or math.nan for result in results]
        apart = [ours - theirs for ours, theirs in zip(losses[policy], losses["bsp"], strict=True)]
        error = stdev(apart) / math.sqrt(SEEDS)
        times = [result.time_to_target_s for result in results if result.time_to_target_s is not None]
        accuracies = [result.final_accuracy or 0.0 for result in results]
        table.add_row(
            policy,
            f"{median(times):.1f}" if times else "-",
            f"{len(times)}/{SEEDS}",
            f"{fmean(accuracies):.2%} ± {stdev(accuracies):.2%}",
            f"{fmean(apart):+.5f} ± {error:.5f}",
        )
        if policy == "balanced":
            good = abs(fmean(apart)) <= 2 * error + ROUNDING
    console.print(table)
    return good


# -- real --------------------------------------------------------------------------------------------------------------

BATCH, BATCH_S, WORKERS, LATE = 64, 0.3, 4, 2


def worker(rank: int, address: str, pace: tuple[tuple[int, float], ...]) -> list[float]:
    """Train for so many steps at each factor on the time of a sample; when each step was over, the start first."""
    join(rank, address)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    factors = [factor if rank == LATE else 1.0 for steps, factor in pace for _ in range(steps)]
    samples = WORKERS * BATCH * len(factors)
    data = TensorDataset(torch.randn(256, 64).repeat(samples // 256, 1), torch.zeros(samples, dtype=torch.long))
    ends_s: list[float] = []
    with polyrhythm.session(model, sgd) as session:
        for (x, y), factor in zip(session.loader(data, BATCH), factors, strict=True):
            if not ends_s:
                ends_s.append(time.perf_counter())
            time.sleep(BATCH_S * factor * len(x) / BATCH)
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            sgd.step()
            ends_s.append(time.perf_counter())
    return ends_s


def real(console: Console) -> bool:
    slow = tuple(1 / BATCH_S * (0.25 if rank == LATE else 1.0) for rank in range(WORKERS))
    stretches = [
        Stretch("one of four 4x slower", 0, 45, slow),
        Stretch("and fast again", 45, 90, (1 / BATCH_S,) * WORKERS),
    ]
    pace = ((45, 4.0), (45, 1.0))
    ends_s = {policy: job(f"real-{policy}", worker, WORKERS, policy, pace)[0] for policy in POLICIES}
    return judge(console, "real workers", stretches, ends_s)


def equal(console: Console) -> bool:
    """In turn, so that both see the same machine."""
    ratios: list[float] = []
    for turn in range(3):
        took: dict[str, float] = {}
        for policy in POLICIES if turn % 2 else reversed(POLICIES):
            ends_s = job(f"equal-{policy}-{turn}", worker, WORKERS, policy, ((35, 1.0),))[0]
            took[policy] = ends_s[-1] - ends_s[10]
        ratios.append(took["balanced"] / took["bsp"])
    table = Table("equal workers", "balanced / bsp, time", "least", "most")
    table.add_row("median of 3", f"{median(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}")
    console.print(table)
    return median(ratios) <= LONGEST


PARTS = {"simulated": simulated, "learning": learning, "real": real, "equal": equal}


def main(names: list[str]) -> int:
    console = Console()
    passed = [PARTS[name](console) for name in names or PARTS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
