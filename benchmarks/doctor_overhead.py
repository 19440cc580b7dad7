"""What the watcher costs: steps of 15 and of 50 ms of real gloo workers, with and without it in turn.

Both sides are one job: its watcher sees some steps, then as many go by unseen, and so on, on all ranks alike. So each
pair of blocks sees the same load of the machine, and what is left is the median of the pairs' ratios. The processor
time that it adds to a step stands beside it, which other load touches less. Wants a quiet machine, or root: then its
ranks run at real-time priority.
``doctor_overhead.py [PAIRS]``; exits with 1 if the bar is missed.
"""

# mypy: allow-untyped-calls
import json
import os
import subprocess
import sys
import time
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

from _priority import come_first
from rich.console import Console
from rich.table import Table

RANKS, PAIRS, BLOCK = 2, 400, 10
STEPS_MS = (15.0, 50.0)
LARGEST_COST = 0.005
OF_MEDIAN = 1.2533 / 1.349
"""Standard error of a median over the distance of the quartiles, for normal values, times the root of their number."""


class BlockTimes(NamedTuple):
    """Of the first rank: time of a block with the watcher over that of its neighbour without, and seconds a step."""

    ratios: list[float]
    added_s: list[float]


def measured(step_ms: float, pairs: int) -> BlockTimes:
    """One job with so many pairs of blocks."""
    with TemporaryDirectory() as folder:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command = [sys.executable, *launcher, __file__, "rank", folder, str(step_ms), str(pairs)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
    wall_s, used_s = json.loads(done.stdout.splitlines()[-1])
    seen = [block for block in range(2 * pairs) if block % 4 in (0, 3)]
    unseen = [block for block in range(2 * pairs) if block % 4 in (1, 2)]
    couples = list(zip(seen, unseen, strict=True))
    added_s = [(used_s[one] - used_s[other]) / BLOCK for one, other in couples]
    return BlockTimes([wall_s[one] / wall_s[other] for one, other in couples], added_s)


def rank(folder: Path, step_ms: float, pairs: int) -> None:
    """Train, and print how long each block took; blocks are seen, unseen, unseen, seen and so on."""
    import torch.distributed as dist

    from polyrhythm.doctor.watch.watcher import RankWatcher

    come_first()
    watcher = RankWatcher(folder)
    watcher.install()
    dist.init_process_group("gloo")
    clock = watcher._clock
    wall_s, used_s = [], []
    train = trainer(step_ms * 1e-3)
    train(BLOCK)
    for block in range(2 * pairs):
        watcher._clock = clock if block % 4 in (0, 3) else None
        began_s, before_s = time.perf_counter(), time.process_time()
        train(BLOCK)
        wall_s.append(time.perf_counter() - began_s)
        used_s.append(time.process_time() - before_s)
    if dist.get_rank() == 0:
        print(json.dumps([wall_s, used_s]), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own destructors abort now and then where threads of gloo still end


def trainer(step_s: float):  # type: ignore[no-untyped-def]
    """So many steps of the usual script."""
    import torch
    from _slow_rank import Delays, Samples, Slow
    from torch.nn.functional import mse_loss
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    torch.manual_seed(1)
    Delays.computing = step_s
    model = DistributedDataParallel(Slow(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(steps: int) -> None:
        for x, y in DataLoader(Samples(8 * steps, 0), 8):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()

    return train


def main(pairs: int) -> bool:
    """Whether the bar was met."""
    table, met = Table("steps", "pairs", "with / without", "error", "quartiles", "bar", "processor time a step"), True
    for step_ms in STEPS_MS:
        found = measured(step_ms, pairs)
        low, middle, high = quantiles(found.ratios, n=4)
        good = middle <= 1 + LARGEST_COST
        met &= good
        added = f"{1e6 * median(found.added_s):+.0f} us ({median(found.added_s) / step_ms * 1e3:+.2%})"
        error = f"{(high - low) * OF_MEDIAN / sqrt(pairs):.4f}"
        figures = f"{middle:.4f}", error, f"{low:.4f} .. {high:.4f}", f"<= {1 + LARGEST_COST}", added
        table.add_row(f"{step_ms:g} ms", str(pairs), *figures, style=None if good else "red")
    Console(width=100).print(table)
    return met


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rank", folder, step_ms, pairs]:
            rank(Path(folder), float(step_ms), int(pairs))
        case [pairs]:
            sys.exit(not main(int(pairs)))
        case _:
            sys.exit(not main(PAIRS))
