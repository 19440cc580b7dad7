# mypy: ignore-errors
"""A script for one process that changes what it trains between two epochs, or its values, also within one."""

import os
import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def change(what, optimizer, body, head):
    if what == "unfreeze":
        body.requires_grad_(True)
    elif what == "group":
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.01})
    else:
        for module in (body, head):
            module.load_state_dict({name: torch.full_like(p, 2.0) for name, p in module.state_dict().items()})
        optimizer.param_groups[0]["lr"] = 0.0


def main(what):
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    body.requires_grad_(what != "unfreeze")
    model = nn.Sequential(body, head)
    optimizer = optim.SGD(head.parameters() if what == "group" else model.parameters(), lr=0.02)
    for epoch in range(3):
        if epoch == 1 and what != "inside":
            change(what, optimizer, body, head)
        for number, (inputs, wanted) in enumerate(loader):
            if what == "inside" and epoch == number == 1:
                model.load_state_dict({name: torch.full_like(p, 2.0) for name, p in model.state_dict().items()})
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
    with open(f"weights.{os.environ['RANK']}", "w", opener=os.open) as out:
        print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)


if __name__ == "__main__":
    main(sys.argv[1])
