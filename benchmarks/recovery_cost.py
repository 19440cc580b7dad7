"""What it costs that a coordinator may die: a quiet job with recovery and without it, in turn.

Four workers with a model of 0.8 million parameters and steps of 15 ms, under a policy on workers and one on servers,
whose parameters are copied every five seconds. Each pair of jobs gives one ratio of the times of their steps. Workers
wait most of a step instead of computing, so that two cores can play four workers; what recovery takes of the processor
is taken from them all the same. ``recovery_cost.py [PAIRS]``; exits with 1 if a policy misses the bar. As root it comes
before all other work on the machine.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median, stdev
from tempfile import TemporaryDirectory

from _priority import come_first
from rich.console import Console
from rich.table import Table

PAIRS, WORKERS, POLICIES = 9, 4, ("bsp", "asp")
WARM_UP, STEPS, STEP_MS = 20, 480, 15.0
LARGEST_COST = 0.01
"""Of the throughput."""

SCRIPT = """
import sys, time
import torch
import polyrhythm

torch.manual_seed(0)
workers, warm_up, steps, step_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1000
model = torch.nn.Linear(784, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = torch.utils.data.TensorDataset(torch.randn(workers * (warm_up + steps), 784))
with polyrhythm.session(model, optimizer) as session:
    for number, (x,) in enumerate(session.loader(data, batch_size=1)):
        if number == warm_up:
            begun_s = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        time.sleep(step_s)
        optimizer.step()
    if session.rank == 0:
        print("took", (time.perf_counter() - begun_s) / (number + 1 - warm_up), flush=True)
"""


def step_ms(folder: Path, policy: str, restarts: int) -> float:
    """Milliseconds of a step of rank 0 in a job whose coordinator may be started again so often."""
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    flags = "--nproc-per-node", str(WORKERS), "--policy", policy, "--max-coordinator-restarts", str(restarts)
    words = [sys.executable, "-m", "polyrhythm", "run", "--no-ui", *flags, str(script)]
    counts = str(WORKERS), str(WARM_UP), str(STEPS), str(STEP_MS)
    done = subprocess.run([*words, *counts], capture_output=True, text=True, check=False)
    if "took " not in done.stdout:
        sys.exit(done.stderr)
    return 1000 * float(done.stdout.split("took ")[1])


def measure(policy: str, pairs: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a step with recovery and without it, by pair."""
    found: dict[int, list[float]] = {0: [], 5: []}
    for pair in range(pairs):
        with TemporaryDirectory() as folder:
            for restarts in (0, 5) if pair % 2 else (5, 0):
                found[restarts].append(step_ms(Path(folder), policy, restarts))
    return found[5], found[0]


def main(pairs: int) -> bool:
    """Whether all bars were met."""
    table, met = Table("policy", "step with recovery", "without", "cost, median", "standard error", "bar"), True
    for policy in POLICIES:
        ours, bare = measure(policy, pairs)
        costs = [a / b - 1 for a, b in zip(ours, bare, strict=True)]
        error = stdev(costs) / pairs**0.5 if pairs > 1 else 0.0
        figures = f"{median(ours):.3f} ms", f"{median(bare):.3f} ms", f"{median(costs):+.2%}", f"{error:.2%}"
        table.add_row(policy, *figures, f"{LARGEST_COST:.0%}")
        met &= median(costs) <= LARGEST_COST
    Console().print(table)
    return met


if __name__ == "__main__":
    come_first()
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
