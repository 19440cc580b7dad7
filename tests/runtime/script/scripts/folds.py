# mypy: ignore-errors
"""Trains a model anew for each fold of its data: with ranks, in a single process, or without a loader."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

RANK = int(os.environ.get("RANK", 0))
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.sum(1, keepdim=True), torch.arange(60))


def loader_of(fold, how):
    kept = Subset(DATA, [index for index in range(60) if index % 3 != fold])
    if how == "ranks":
        return DataLoader(kept, batch_size=4, sampler=DistributedSampler(kept))
    return DataLoader(kept, batch_size=4, shuffle=True)


def batches_of(loader, how):
    return [(X[:8], X[:8].sum(1, keepdim=True), torch.arange(8))] * 5 if how == "drawn" else loader


def train(fold, how, out):
    torch.manual_seed(fold)
    model = nn.Linear(4, 1 + fold)  # another shape each time
    wrapped = DistributedDataParallel(model) if how == "ranks" else model
    optimizer = optim.Adam(wrapped.parameters(), lr=0.1)
    loader = loader_of(fold, how)
    for epoch in range(2):
        if how == "ranks":
            loader.sampler.set_epoch(epoch)
        for x, y, index in batches_of(loader, how):
            print(*index.tolist(), file=out, end=" ")
            optimizer.zero_grad()
            nn.functional.mse_loss(wrapped(x), y.expand(-1, 1 + fold)).backward()
            optimizer.step()
        print(file=out)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def main(how):
    if how == "ranks":
        dist.init_process_group("gloo")
    with open(f"seen.{RANK}", "w", opener=os.open) as out:
        weights = [value for fold in range(3) for value in train(fold, how, out)]
    if how == "ranks":
        dist.destroy_process_group()
    with open(f"weights.{RANK}", "w", opener=os.open) as out:
        print(*weights, file=out)


if __name__ == "__main__":
    main(sys.argv[1])
