# mypy: ignore-errors
"""Trains on data that it draws, by losses of single samples, and goes on to other models once its group is gone."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    torch.vmap(lambda row: model(row).square().sum())(torch.randn(8, 4)).mean().backward()
    optimizer.step()
dist.destroy_process_group()
other = nn.Linear(4, 1)
again = torch.optim.SGD(other.parameters(), lr=0.1)
other(torch.ones(1, 4)).sum().backward()
again.step()
print(*[value.hex() for value in model.weight.detach().flatten().tolist()])
