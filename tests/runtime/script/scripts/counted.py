# mypy: ignore-errors
"""A script that counts its steps and keeps the iterator that it reads: nothing but its place says that it is through.

Arguments: how it reads, and the steps.
"""

import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOW, STEPS = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])


def made(samples, size):
    data = TensorDataset(torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples)))
    return DataLoader(data, size, sampler=DistributedSampler(data))


def endless(loader):
    while True:
        yield from loader


def restarted(loader):
    """By `next` alone, as in the loop of a script of a large model."""
    reading = iter(loader)
    while True:
        try:
            batch = next(reading)
        except StopIteration:
            reading = iter(loader)
            batch = next(reading)
        yield batch


def step(*parts):
    x = torch.cat([part for (part,) in parts])
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()


def passes(first, second):
    """Whole epochs over one loader, and as much of another as that takes."""
    reading = endless(second)
    for _ in range(STEPS // len(first)):
        for batch in first:
            step(batch, next(reading))


def cycled(*loaders):
    for _, parts in zip(range(STEPS), itertools.cycle(zip(*loaders, strict=False)), strict=False):
        step(*parts)


def cycled_alone(loader):
    for _, (part, _) in zip(range(STEPS), itertools.cycle(zip(loader, range(99), strict=False)), strict=False):
        step(part)


def cycled_each_epoch(short, long):
    for _ in range(3):
        for parts in zip(itertools.cycle(short), long, strict=False):
            step(*parts)


def count(reading):
    for _ in range(STEPS):
        step(next(reading))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first, second = [made(samples, size) for samples, size in ((60, 4), (200, 8))]
if HOW == "two":
    passes(first, second)
elif HOW == "cycled":
    cycled(first, second)
elif HOW == "cycled alone":
    cycled_alone(first)
elif HOW == "cycled each epoch":
    cycled_each_epoch(first, second)
else:
    kept = endless(first) if HOW == "endless" else restarted(first)
    count(kept)
dist.barrier()
with open(f"weights.{RANK}", "w") as out:
    print(*[x.hex() for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
dist.destroy_process_group()
