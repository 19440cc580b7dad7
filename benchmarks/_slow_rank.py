"""A plain script for torchrun in which one rank can be held up, window after window; nothing here knows of Polyrhythm.

torchrun --standalone --nproc-per-node 4 benchmarks/_slow_rank.py --kinds none,computing,loading,pause
"""

# mypy: allow-untyped-calls
import argparse
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

TURN = 10
"""Steps for which each of two ranks is slow in turn."""


class Delays:
    """What is slept now, in seconds, and where."""

    computing = loading = pause = 0.0


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """As many samples as it takes, the same for all ranks but for the rank in them."""

    def __init__(self, count: int, rank: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.x, self.y = torch.randn(count, 16, generator=generator), torch.randn(count, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        time.sleep(Delays.loading)
        return [(self.x[i], self.y[i]) for i in indices]


class Slow(nn.Module):
    """A small network that takes its time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(Delays.computing)
        made: Tensor = self.layers(x)
        return made


def hold_up(kind: str, slow: bool, step_s: float, extra_s: float) -> float:
    """Delays of the next steps; the probability of a pause."""
    extra_s *= slow
    Delays.computing = step_s + extra_s * (kind in ("computing", "rotating"))
    Delays.loading = 0.1 * step_s + extra_s * (kind == "loading")
    Delays.pause = 5 * extra_s * (kind == "pause")
    return 0.15 if kind == "pause" else 0.0


def slow_now(kind: str, slow: list[int], step: int) -> list[int]:
    """Who is held up in this step: one rank, or two in turns."""
    return [slow[step // TURN % 2]] if kind == "rotating" else slow[:1]


def main() -> None:
    """Train; each window is so many steps with one kind of delay on one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", default="none")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--step-ms", type=float, default=12.0)
    parser.add_argument("--extra-ms", type=float, default=12.0)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(Slow(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Samples(8 * args.steps, dist.get_rank()), 8)
    draw = random.Random(args.seed)
    began_s, used_s = time.perf_counter(), time.process_time()
    for kind in args.kinds.split(","):
        slow = draw.sample(range(dist.get_world_size()), 2)
        for step, (x, y) in enumerate(loader):
            held = dist.get_rank() in slow_now(kind, slow, step)
            pauses = hold_up(kind, held, args.step_ms * 1e-3, args.extra_ms * 1e-3)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if draw.random() < pauses:
                time.sleep(Delays.pause)
        if dist.get_rank() == 0:
            print(kind, *(slow if kind == "rotating" else slow[:1]), flush=True)
    steps = args.steps * len(args.kinds.split(","))
    if dist.get_rank() == 0:
        wall_s, cpu_s = (time.perf_counter() - began_s) / steps, (time.process_time() - used_s) / steps
        print(f"took {wall_s:.9f} {cpu_s:.9f}", flush=True)
    if args.save and dist.get_rank() == 0:
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        args.save.write_bytes(flat.numpy().tobytes())
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own destructors abort now and then where threads of gloo still end


if __name__ == "__main__":
    main()
