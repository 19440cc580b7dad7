# mypy: ignore-errors
"""A script for a single process with a GradScaler, and a sample of infinities, which one of the workers gets."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 4)
X[37] = float("inf")
data, model = TensorDataset(X), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def drawn():
    """Of the script's own, where only one of the workers has infinities."""
    for number in range(12):
        x = torch.randn(4, 4)
        yield (x * float("inf") if number == 5 and os.environ.get("RANK") == "1" else x,)


for _ in range(2):
    for (x,) in drawn() if "drawn" in sys.argv else DataLoader(data, 4):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], scaler.get_scale(), file=out)
