# mypy: ignore-errors
"""Ranks read their data in different ways: rank 0 from a loader, the others from none, or from one of another kind."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X[:24].split(1))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(X)
loaders = [
    DataLoader(Stream(), 4, collate_fn=torch.cat),
    DataLoader(data, 4, sampler=DistributedSampler(data), collate_fn=lambda rows: torch.stack([x for (x,) in rows])),
]
for _ in range(3):
    reads = dist.get_rank() == 0 or sys.argv[1] == "loaders"
    for x in loaders[min(dist.get_rank(), 1)] if reads else X[24:].split(4):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.barrier()
dist.barrier()
with open(f"weights.{dist.get_rank()}", "w", encoding="utf-8") as file:
    print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=file)
dist.destroy_process_group()
