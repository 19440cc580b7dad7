# mypy: ignore-errors
"""A script for a single process that can use whole mini-batches only, as a contrastive loss with a fixed mask."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(100, 4)), 8, shuffle=True, drop_last=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(2):
    for (x,) in loader:
        assert len(x) == 8, "drop_last"
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
