# mypy: ignore-errors
"""A script for a single process that evaluates its training data while it trains on them.

Arguments: how, and mini-batches of a step.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WHAT, PARTS = sys.argv[1], int(sys.argv[2])
data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(2)) + 1, torch.arange(96))
loader = DataLoader(data, 4, shuffle=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
looked, seen = [], []


def evaluate():
    for number, (x, index) in enumerate(loader):
        model.eval()
        with torch.no_grad():
            model(x)
        looked.append(len(index))
        if WHAT == "glance" and number:
            break
    if WHAT != "forgets":
        model.train()


def train(number, x, index):
    model(x).square().mean().backward()
    seen.extend(index.tolist())
    if number % PARTS == PARTS - 1:
        optimizer.step()
        optimizer.zero_grad()


def counted(batches):
    """As the engine of ignite: an iterator that is held beyond the end of an epoch."""
    for number in range(len(loader)):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        train(number, *batch)
    return batches


held = iter(loader)
for _ in range(3):
    if WHAT == "held":
        held = counted(held)
    else:
        for number, batch in enumerate(loader):
            train(number, *batch)
            if WHAT in ("nested", "glance") and number % 5 == 0:
                evaluate()
    evaluate()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[f"{x:.9g}" for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
with open(f"seen.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(len(looked), *sorted(seen), file=out)
