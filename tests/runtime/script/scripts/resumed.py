# mypy: ignore-errors
"""Goes on from a snapshot of its own at an epoch, or in the middle of one, and ends after another."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FIRST, PASSED, END, COUNTED = *map(int, sys.argv[1:4]), sys.argv[4]
DATA = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)))


def train(number):
    sampler.set_epoch(number)
    for batch, (x,) in enumerate(loader):
        if number == FIRST and batch < PASSED:
            continue
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(DATA)
loader = DataLoader(DATA, 4, sampler=sampler)
if COUNTED == "epoch":
    for epoch in range(FIRST, END):
        train(epoch)
else:
    for e in range(FIRST, END):
        train(e)
Path(f"ended.{dist.get_rank()}").write_text("", encoding="utf-8")
dist.destroy_process_group()
