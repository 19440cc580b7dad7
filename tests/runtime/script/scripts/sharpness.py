# mypy: ignore-errors
"""Sharpness-aware steps: two backward passes for a mini-batch, the second at parameters that are taken back."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Sharpness(torch.optim.Optimizer):
    """An optimizer around one of torch's; it has no `step`."""

    def __init__(self, parameters, base, **options):
        super().__init__(parameters, options)
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.before = {}

    @torch.no_grad()
    def climb(self):
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.before[p] = p.data.clone()
            p.add_(p.grad * (0.05 / norm))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, before in self.before.items():
            p.data = before
        self.base.step()
        self.zero_grad()


data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)) + 1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
if "alone" in sys.argv:
    loader = DataLoader(data, 8)
else:
    dist.init_process_group("gloo")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(model)
optimizer = Sharpness(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for _ in range(3):
    for (x,) in loader:
        if "apart" in sys.argv:
            with model.no_sync():
                model(x).square().mean().backward()
        else:
            model(x).square().mean().backward()
        optimizer.climb()
        model(x).square().mean().backward()
        optimizer.descend()
# Opened so, it is each rank's own also in a script for one process.
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as file:
    print(*weights, file=file)
