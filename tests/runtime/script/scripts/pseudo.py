# mypy: ignore-errors
"""A model with batch normalization that labels its own mini-batches, in evaluation mode, before it trains on them."""

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
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(2):
    for (x,) in loader:
        model.eval()
        with torch.no_grad():
            labels = model(x) + 1
        model.train()
        optimizer.zero_grad()
        (model(x) - labels).square().mean().backward()
        optimizer.step()
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
dist.destroy_process_group()
