# mypy: ignore-errors
"""Rank 0 alone reads the training loader between two epochs, which all ranks have to begin."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.ones(48, 4))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
for _ in range(3):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    total = torch.zeros(4)
    if dist.get_rank() == 0:
        for (x,) in loader:
            total += x.sum(0)
    dist.broadcast(total, 0)
