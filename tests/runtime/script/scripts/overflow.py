# mypy: ignore-errors
"""A GradScaler leaves the first two steps out, as it does until its scale is small enough.

Arguments: whether the loader is "dealt" to the ranks or each has its "own", and the mode of the model.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DATA, MODE = sys.argv[1:3]
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(rank if DATA == "own" else 7)))
loader = DataLoader(data, 4, sampler=None if DATA == "own" else DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
model.train(MODE == "train")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(2):
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        if rank == 1 and epoch == 0 and number < 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
made = [x for p in model.parameters() for x in p.detach().flatten().tolist()]
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*made, scaler.get_scale(), file=out)
dist.destroy_process_group()
