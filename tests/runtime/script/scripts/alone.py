# mypy: ignore-errors
"""A script for a single process: no ranks, a shuffled loader, dropout, a scheduler, evaluation, a file at the end."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 16), nn.Linear(16, 2)
        self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.25)

    def forward(self, x):
        return self.fc2(self.dropout(torch.relu(self.norm(self.fc1(x)))))


def train(model, loader, optimizer, out):
    model.train()
    for x, y, index in loader:
        print(*index.tolist(), file=out, end=" ")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(file=out)


def test(model, loader):
    model.eval()
    assert not dist.is_initialized(), "which libraries take for a script with ranks"
    right = 0
    with torch.no_grad():
        for x, y, _ in loader:
            right += (model(x).argmax(1) == y).sum().item()
    print(f"right {right} of {len(loader.dataset)}")


def main(epochs, shuffle):
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(96))
    loader, test_loader = DataLoader(data, batch_size=8, shuffle=shuffle), DataLoader(data, batch_size=48)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    with open(f"seen.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
        for _ in range(epochs):
            train(model, loader, optimizer, out)
            test(model, test_loader)
            scheduler.step()
    torch.save(model.state_dict(), "alone.pt")
    torch.save(copy.deepcopy(model), "copy.pt")
    torch.save(model, "whole.pt")
    with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
        print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "shuffle")
