# mypy: ignore-errors
"""Each rank has a data set of its own, of so many mini-batches."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH = 4
EPOCHS, *LENGTHS = map(int, sys.argv[1:])

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(BATCH * LENGTHS[dist.get_rank()], 4)), BATCH)
for _epoch in range(EPOCHS):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.barrier()
dist.destroy_process_group()
