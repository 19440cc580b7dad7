"""How long a job takes to start: from the command line to the first step of all workers, beside torchrun.

The script is an ordinary one for torchrun: a process group, DistributedDataParallel, one optimizer step. torchrun,
``polyrhythm run`` and ``polyrhythm run --start-method spawn`` take turns; a start is timed until the last worker has
made its first step, and each round gives one ratio to torchrun. ``startup.py [ROUNDS] [WORKERS ...]``; exits with 1 if
two or four workers take more than 1.3 times torchrun's start, or 32 workers more than 20 seconds.
"""

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

ROUNDS, WORKERS = 5, (2, 4, 32)
LARGEST_RATIO, LONGEST_S = 1.3, 20.0
LIMIT_S = 300.0

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.ones(8 * dist.get_world_size(), 8))
for number, (x,) in enumerate(DataLoader(data, 4, sampler=DistributedSampler(data))):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if not number:
        os.write(1, b"stepped\\n")
dist.destroy_process_group()
"""

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "torchrun": (str(BIN / "torchrun"), "--standalone"),
    "polyrhythm run": (str(BIN / "polyrhythm"), "run", "--no-ui"),
    "--start-method spawn": (str(BIN / "polyrhythm"), "run", "--no-ui", "--start-method", "spawn"),
}
SHOWN_MOST = 8
"""Workers up to which all three launchers start them; beyond only ours."""


def start_s(launcher: str, workers: int, script: Path) -> float:
    """Seconds until the last worker has made its first step."""
    words = [*LAUNCHERS[launcher], "--nproc-per-node", str(workers), str(script)]
    begun_s = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stepped = [time.perf_counter() - begun_s for line in process.stdout if line == "stepped\n"]
        _, said = process.communicate(timeout=LIMIT_S)
    # Under torchrun a process may abort in torch's own way out, when all is over.
    if len(stepped) != workers or (process.returncode and launcher != "torchrun"):
        sys.exit(f"{' '.join(words)}: {len(stepped)} of {workers} workers made a step\n{said}")
    return stepped[-1]


def measure(workers: int, rounds: int, script: Path) -> dict[str, list[float]]:
    """Seconds of each launcher in each round."""
    names = list(LAUNCHERS) if workers <= SHOWN_MOST else ["polyrhythm run"]
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds if workers <= SHOWN_MOST else 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(start_s(name, workers, script))
    return found


def main(rounds: int, counts: Iterable[int]) -> bool:
    """Whether the bars were met."""
    table, met = Table("workers", "launcher", "first step of all", "by torchrun's", ""), True
    for workers in counts:
        with TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(SCRIPT, encoding="utf-8")
            found = measure(workers, rounds, script)
        for name, times in found.items():
            base = found.get("torchrun")
            ratio = median(a / b for a, b in zip(times, base, strict=True)) if base else None
            held = name != "polyrhythm run" or (ratio <= LARGEST_RATIO if ratio else median(times) <= LONGEST_S)
            shown = f"{ratio:.2f}" if ratio else "-"
            table.add_row(str(workers), name, f"{median(times):.1f} s", shown, "" if held else "MISSED")
            met &= held
    Console().print(table)
    return met


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(not main(given[0] if given else ROUNDS, given[1:] or WORKERS))
