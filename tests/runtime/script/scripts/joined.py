# mypy: ignore-errors
"""A script whose ranks read their own data within ``model.join()``: how, ``even``, ``uneven`` or from no ``list``."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, what = dist.get_rank(), sys.argv[1]
x = torch.randn(16 + 8 * rank * (what != "even"), 4)
batches = list(x.split(4)) if what == "list" else DataLoader(x, 4)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with model.join():
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
with open(f"weights.{rank}", "w", encoding="utf-8") as out:
    print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
dist.destroy_process_group()
