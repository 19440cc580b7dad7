# mypy: ignore-errors
"""Keeps the states of model and optimizer after some steps, as a snapshot in the middle of an epoch does."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
kept = []
for _ in range(2):
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if number % 5 == 2:
            states = [each["momentum_buffer"] for each in optimizer.state_dict()["state"].values()]
            kept.append([each.flatten().clone() for each in (*model.state_dict().values(), *states)])
torch.save(kept, f"kept.{os.environ['RANK']}")
