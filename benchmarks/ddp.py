"""BSP through Polyrhythm against native DistributedDataParallel: the same loop, 2 and 4 gloo workers on this host.

Both sides live in the same worker processes and take turns; each round gives one ratio, and the median counts. A round
begins with a barrier and is timed on rank 0, which leaves a step only with everyone's gradients. Exits with 1 if a bar
is missed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from polyrhythm.runtime.group import BACKEND
from polyrhythm.testing.processes import run_workers

WARM_UP_STEPS, LARGEST_RATIO = 4, 1.03

Trained: TypeAlias = tuple[nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    parameters: str
    batch_norm: bool
    rounds: int
    steps: int

    def model(self) -> nn.Module:
        """The same on every rank and side."""
        torch.manual_seed(0)
        return cnn(self.batch_norm) if self.parameters == "0.3 M" else mlp(self.batch_norm)

    def batch(self) -> tuple[Tensor, Tensor]:
        """One mini-batch."""
        return torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))


CASES = [
    Case("CNN", "0.3 M", batch_norm=False, rounds=61, steps=3),
    Case("CNN", "0.3 M", batch_norm=True, rounds=61, steps=3),
    Case("MLP", "11 M", batch_norm=False, rounds=25, steps=2),
    Case("MLP", "11 M", batch_norm=True, rounds=25, steps=2),
]


def cnn(batch_norm: bool) -> nn.Module:
    """Convolutions of 32, 64 and 128 channels and two linear layers."""
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1)]
        layers += [nn.BatchNorm2d(after)] if batch_norm else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, 10))


def mlp(batch_norm: bool) -> nn.Module:
    """Two hidden layers of 2,950 units."""
    norm = [nn.BatchNorm1d(2950)] if batch_norm else []
    hidden = [nn.Linear(784, 2950), *norm, nn.ReLU(), nn.Linear(2950, 2950), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(2950, 10))


@contextmanager
def native(model: nn.Module) -> Iterator[Trained]:
    """DistributedDataParallel on a gloo group of its own."""
    ddp = DistributedDataParallel(model, process_group=dist.new_group(backend="gloo"))
    yield ddp, torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)


@contextmanager
def switchable(model: nn.Module) -> Iterator[Trained]:
    """DistributedDataParallel on a switchable group."""
    ddp = DistributedDataParallel(model, process_group=dist.new_group(backend=BACKEND))
    yield ddp, torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)


Side: TypeAlias = Callable[[nn.Module], AbstractContextManager[Trained]]

SIDES: dict[str, Side] = {"native": native, "switchable": switchable}


def measure(rank: int, size: int, port: int, case: Case) -> dict[str, list[float]]:
    """Seconds a step of each side, by round; on one of the workers."""
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=size)
    batch = case.batch()
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    with ExitStack() as stack:
        trained = {name: stack.enter_context(side(case.model())) for name, side in SIDES.items()}
        for side in trained.values():
            run_steps(*side, batch, WARM_UP_STEPS)
        for number in range(case.rounds):
            for name in sorted(SIDES, reverse=bool(number % 2)):
                times[name].append(run_steps(*trained[name], batch, case.steps))
    return times


def run_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], steps: int) -> float:
    """Seconds a step."""
    x, y = batch
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (time.perf_counter() - start) / steps


def main() -> bool:
    """Whether every bar was met."""
    table = Table("model", "size", "norm", "workers", "native ms", "ours ms", "ratio", "bar")
    met = True
    for case in CASES:
        for size in (2, 4):
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            times = run_workers(measure, size, size, store.port, case, timeout_s=300)[0]
            ratio = median(b / a for a, b in zip(times["native"], times["switchable"], strict=True))
            met &= ratio <= LARGEST_RATIO
            milliseconds = [f"{1000 * median(times[name]):.2f}" for name in ("native", "switchable")]
            norm = "yes" if case.batch_norm else "no"
            row = [case.name, case.parameters, norm, str(size), *milliseconds, f"{ratio:.3f}", f"<= {LARGEST_RATIO}"]
            table.add_row(*row, style=None if ratio <= LARGEST_RATIO else "red")
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
