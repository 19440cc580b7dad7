# mypy: ignore-errors
"""A data set that is made anew for each epoch, and evaluated on another of the same length."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WHAT, RANK = sys.argv[1], os.environ.get("RANK", 0)


def make(first, samples, size=4):
    indices = torch.arange(first, first + samples)
    data = TensorDataset(torch.stack([indices / 100, torch.ones(samples)], 1), indices)
    return DataLoader(data, size, sampler=DistributedSampler(data, shuffle=False) if WHAT == "ddp" else None)


torch.manual_seed(0)
model = nn.Linear(2, 1)
if WHAT == "ddp":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with open(f"seen.{RANK}", "w", opener=os.open) as seen:
    for epoch in range(3):
        size = 4 * (1 + epoch) if WHAT == "wider" else 4
        train = make(100 * epoch, 48 - 8 * epoch if WHAT == "shorter" else 48, size)
        held_out = make(1000, 48)
        for x, index in train:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            print(*index.tolist(), file=seen, end=" ")
        print(file=seen)
        model.eval()
        assert sorted(int(i) for _, index in held_out for i in index)[0] >= 1000
        model.train()
with open(f"weights.{RANK}", "w", opener=os.open) as out:
    print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=out)
