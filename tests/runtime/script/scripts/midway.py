# mypy: ignore-errors
"""Keeps the states of model and optimizer after some steps, as a snapshot in the middle of an epoch does."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EARLY = "early" in sys.argv
OWN = list if "own" in sys.argv else None
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, 4, sampler=list(sampler) if OWN else sampler)  # whose order no job knows
kept = []
for _ in range(2):
    for number, (x,) in enumerate(loader if OWN is None else map(OWN, loader)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if EARLY:
            optimizer.state_dict()
        loss.backward()
        optimizer.step()
        if number % 5 == 2:
            states = [each["momentum_buffer"] for each in optimizer.state_dict()["state"].values()]
            kept.append([each.flatten().clone() for each in (*model.state_dict().values(), *states)])
torch.save(kept, f"kept.{os.environ['RANK']}")
