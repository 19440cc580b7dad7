# mypy: ignore-errors
"""A backbone in evaluation mode and a head in training mode, each wrapped, under one optimizer."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(7)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
backbone = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))).eval()
head = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
for _ in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        (head(backbone(x)) - 1).square().mean().backward()
        optimizer.step()
made = [x for model in (backbone, head) for p in model.parameters() for x in p.detach().flatten().tolist()]
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*made, file=out)
dist.destroy_process_group()
