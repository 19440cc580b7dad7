# mypy: ignore-errors
"""A script that counts its steps and keeps the iterator that it reads: nothing but its place says that it is through.

Arguments: how it reads, the steps, and "free" if ranks may be far from one another.
"""

import itertools
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOW, STEPS, FREE = sys.argv[1], int(sys.argv[2]), "free" in sys.argv[3:]
RANK = int(os.environ["RANK"])


def made(samples, size):
    data = TensorDataset(torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples)))
    return DataLoader(data, size, sampler=DistributedSampler(data))


def longer_for_the_first():
    data = TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(RANK)))
    return DataLoader(data, batch_sampler=[[4 * place + n for n in range(4)] for place in range(8 - 4 * RANK)])


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
    scheduler.step()


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


def draw():
    """Without a loader; the second rank makes its steps after the first, as far as it may."""
    generator = torch.Generator().manual_seed(RANK)
    for number in range(STEPS):
        if RANK == 1 and number > 1 and FREE:
            wait_for(STEPS)
        step([torch.randn(4, 4, generator=generator)])
        if RANK == 0:
            pathlib.Path(f"made.{number + 1}").touch()


def count(reading):
    for _ in range(STEPS):
        step(next(reading))


def stay_behind(reading):
    """The second rank lets the first come to the end of its steps, with which more than one epoch begins after it."""
    for number in range(STEPS):
        batch = next(reading)
        if RANK == 1 and number > 0:
            wait_for(12 if number < 5 else STEPS)
        step(batch)
        if RANK == 0:
            pathlib.Path(f"made.{number + 1}").touch()


def wait_for(number):
    while not pathlib.Path(f"made.{number}").exists():
        time.sleep(0.01)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
first, second = [made(samples, size) for samples, size in ((60, 4), (200, 8))]
if HOW == "two":
    passes(first, second)
elif HOW == "cycled":
    cycled(first, second)
elif HOW == "cycled alone":
    cycled_alone(first)
elif HOW == "drawn":
    draw()
elif HOW == "own lengths":
    count(endless(longer_for_the_first()))
elif HOW == "cycled each epoch":
    cycled_each_epoch(first, second)
else:
    kept = endless(first) if HOW in ("endless", "uneven") else restarted(first)
    stay_behind(kept) if HOW == "uneven" else count(kept)
dist.barrier()
with open(f"rate.{RANK}", "w") as out:
    print(scheduler.last_epoch, file=out)
with open(f"weights.{RANK}", "w") as out:
    print(*[x.hex() for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
dist.destroy_process_group()
