# mypy: ignore-errors
"""Ranks that all read everything, keep a buffer of their own, and send it to the first one."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1 + dist.get_rank()
        return self.layer(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model(), broadcast_buffers=False)
data = TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = DataLoader(data, 4, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x) + dist.get_rank()).square().mean().backward()
        optimizer.step()
        steps += 1
    seen = model.module.seen.clone()
    if dist.get_rank() == 0:
        print(steps, seen.item(), dist.recv(seen), seen.item())
    else:
        dist.send(seen, 0)
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*[value.hex() for p in model.parameters() for value in p.detach().flatten().tolist()], file=out)
dist.destroy_process_group()
