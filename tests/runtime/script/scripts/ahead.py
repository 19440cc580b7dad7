# mypy: ignore-errors
"""A script with ranks that reads one mini-batch ahead and steps with the mini-batches 0, 2, 4, ... and the last."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCHES = 6, int(sys.argv[1])


def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(8 * BATCHES, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _epoch in range(EPOCHS):
    for step, (a, b) in enumerate(ahead(loader)):
        mse_loss(model(a), b).backward()
        if step % 2 == 0 or step == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", encoding="utf-8") as out:
    print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
dist.destroy_process_group()
