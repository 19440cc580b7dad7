# mypy: ignore-errors
"""A loss that is multiplied by what all ranks have together, or gradients that are added up, as the keyword says.

With "after" the ranks do that when the loop is over.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

what, after = sys.argv[1], "after" in sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.rand(96) > 0.3)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
module = nn.Linear(4, 1)
model = module if what == "gradients" else DistributedDataParallel(module)
optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
for _ in range(2):
    for x, used in loader:
        seen = torch.zeros(())
        dist.all_reduce(seen)  # for the log
        losses = (model(x) - 1).square().flatten() * used
        factor = losses.detach().mean() if what == "weight" else used.sum().float()
        factor = factor.long() if what == "whole" else factor
        if what in ("count", "whole", "weight"):
            dist.all_reduce(factor)  # on which a gradient depends
        optimizer.zero_grad()
        loss = losses.mean() * factor if what == "weight" else losses.sum() / factor.clamp(min=1)
        loss.backward()
        if what == "gradients":
            for p in module.parameters():
                dist.all_reduce(p.grad)  # by hand
        optimizer.step()
        if what == "broadcast" and not after:
            dist.broadcast(seen, 0)  # in the loop
    if after:
        dist.broadcast(seen, 0)
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*torch.cat([p.flatten() for p in module.parameters()]).tolist(), file=out)
