# mypy: ignore-errors
"""Uses Polyrhythm itself; prints how many exchanges of gradients are still there after its last epoch."""

import gc

import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4) + 1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with polyrhythm.session(model, optimizer, epochs=2) as session:
    for _ in range(2):
        for (x,) in session.loader(data, batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    gc.collect()
    print(sum(type(each).__name__ == "Attended" for each in gc.get_objects()))
