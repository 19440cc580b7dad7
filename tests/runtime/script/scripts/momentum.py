# mypy: ignore-errors
"""A second encoder inside the model that the script moves by itself, as in MoCo."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.body = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 4)
        self.body.requires_grad_(False)  # which stays as it is
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False

    def forward(self, x):
        x = self.body(x)
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1
        return (self.query(x) - self.key(x) - 1).square().mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Momentum())
data = TensorDataset(torch.randn(128, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*[x for p in model.module.key.parameters() for x in p.detach().flatten().tolist()], file=out)
