"""BSP through a session against native DistributedDataParallel: the same loop, 2 and 4 gloo workers on this host.

Both sides live in the same worker processes and take turns; each round gives one ratio, and the median counts. A round
begins with a barrier and is timed on rank 0, which leaves a step only with everyone's gradients. The loop is the same
on both sides, from the data loader to the optimizer's step. Exits with 1 if a bar is missed.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

import msgspec
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import polyrhythm
from polyrhythm.runtime.control import Address
from polyrhythm.runtime.job_config import JobConfig, hub_address
from polyrhythm.runtime.rendezvous import start_hub
from polyrhythm.testing.processes import run_workers

BATCH, WARM_UP_STEPS, LARGEST_RATIO = 32, 4, 1.03

Trained: TypeAlias = tuple[nn.Module, torch.optim.Optimizer, Iterator[Any]]


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
        return torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))


CASES = [
    Case("CNN", "0.3 M", batch_norm=False, rounds=61, steps=2),
    Case("CNN", "0.3 M", batch_norm=True, rounds=61, steps=2),
    Case("MLP", "11 M", batch_norm=False, rounds=25, steps=2),
    Case("MLP", "11 M", batch_norm=True, rounds=25, steps=2),
]


def cnn(batch_norm: bool) -> nn.Module:
    """Convolutions of 32, 64 and 128 channels and two linear layers."""
    layers: list[nn.Module] = []
    for before, after, stride in ((1, 32, 1), (32, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1)]
        layers += [nn.BatchNorm2d(after)] if batch_norm else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6272, 32), nn.ReLU(), nn.Linear(32, 10))


def mlp(batch_norm: bool) -> nn.Module:
    """Two hidden layers of 2,950 units."""
    norm = [nn.BatchNorm1d(2950)] if batch_norm else []
    hidden = [nn.Linear(784, 2950), *norm, nn.ReLU(), nn.Linear(2950, 2950), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(2950, 10))


class Numbers(Dataset[int]):
    """As many samples as all steps need; a mini-batch is the same tensors whatever its indices."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:
        return index


@contextmanager
def native(case: Case, rank: int, size: int, dataset: Numbers) -> Iterator[Trained]:
    """DistributedDataParallel on a gloo group of its own, and torch's sampler."""
    ddp = DistributedDataParallel(case.model(), process_group=dist.new_group(backend="gloo"))
    sampler: DistributedSampler[int] = DistributedSampler(dataset, size, rank)
    yield ddp, optimizer(ddp), iter(DataLoader(dataset, BATCH, sampler=sampler))


@contextmanager
def through_session(case: Case, rank: int, size: int, dataset: Numbers) -> Iterator[Trained]:
    """The plain model in a session, which finds out by itself where it is."""
    del rank, size
    model = case.model()
    sgd = optimizer(model)
    with polyrhythm.session(model, sgd, policy="bsp") as session:
        yield model, sgd, iter(session.loader(dataset, BATCH))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The same on both sides."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


SIDES = {"native": native, "session": through_session}


def measure(rank: int, size: int, port: int, address: str, case: Case) -> dict[str, list[float]]:
    """Seconds a step of each side, by round; on one of the workers."""
    os.environ |= {"POLYRHYTHM_HUB": address, "RANK": str(rank)}
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=size)
    batch = case.batch()
    dataset = Numbers((WARM_UP_STEPS + case.rounds * case.steps + 1) * BATCH * size)
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    with ExitStack() as stack:
        trained = {name: stack.enter_context(side(case, rank, size, dataset)) for name, side in SIDES.items()}
        for side in trained.values():
            run_steps(*side, batch, WARM_UP_STEPS)
        for number in range(case.rounds):
            for name in sorted(SIDES, reverse=bool(number % 2)):
                times[name].append(run_steps(*trained[name], batch, case.steps))
    return times


def run_steps(
    model: nn.Module, sgd: torch.optim.Optimizer, indices: Iterator[Any], batch: tuple[Tensor, Tensor], steps: int
) -> float:
    """Seconds a step."""
    x, y = batch
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        next(indices)
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        sgd.step()
    return (time.perf_counter() - start) / steps


def main() -> bool:
    """Whether every bar was met."""
    table = Table("model", "size", "norm", "workers", "native ms", "ours ms", "ratio", "bar")
    met = True
    for case in CASES:
        for size in (2, 4):
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            settings = JobConfig(job=f"benchmark-{os.getpid()}-{len(table.rows)}", workers=size)
            hub = start_hub(settings)
            address = msgspec.json.encode(Address(hub_address(settings.job), settings.job)).decode()
            times = run_workers(measure, size, size, store.port, address, case, timeout_s=300)[0]
            hub.wait()
            ratio = median(b / a for a, b in zip(times["native"], times["session"], strict=True))
            met &= ratio <= LARGEST_RATIO
            milliseconds = [f"{1000 * median(times[name]):.2f}" for name in SIDES]
            norm = "yes" if case.batch_norm else "no"
            row = [case.name, case.parameters, norm, str(size), *milliseconds, f"{ratio:.3f}", f"<= {LARGEST_RATIO}"]
            table.add_row(*row, style=None if ratio <= LARGEST_RATIO else "red")
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
