# mypy: ignore-errors
"""For one process: its mini-batch is larger than its data set; it reads what it has saved, and removes it."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4) + 1)
model = nn.Linear(4, 1)
os.makedirs("kept/models")  # noqa: PTH103 (as scripts do)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(3):
    for (x,) in DataLoader(data, 64, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    with open("model.pt", "wb") as out:
        torch.save(model, out)
    with open("model.pt", "rb") as made:
        model.load_state_dict(torch.load(made, weights_only=False).state_dict())
    torch.save(model.state_dict(), "state.pt")
    model.load_state_dict(torch.load("state.pt"))
    torch.save(model.state_dict(), "kept/models/best.pt")
    model.load_state_dict(torch.load("kept/models/best.pt"))
    os.remove("kept/models/best.pt")  # noqa: PTH107
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
