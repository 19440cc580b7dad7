# mypy: ignore-errors
"""A script whose loader is read by a thread of its own; with an argument the iterator is made outside of it."""

import queue
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def fed(source):
    batches = queue.Queue(3)

    def fill():
        for batch in source:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 4)
sampler = DistributedSampler(x)
loader = DataLoader(x, 4, sampler=sampler)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in fed(iter(loader) if sys.argv[1:] else loader):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
with open(f"weights.{dist.get_rank()}", "w", encoding="utf-8") as out:
    print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
dist.destroy_process_group()
