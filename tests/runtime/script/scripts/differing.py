# mypy: ignore-errors
"""Ranks that do not agree on their data, each in the way that the command line says."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

WHAT = sys.argv[1]


class Augmented(TensorDataset):
    """Noise on every sample, from a generator of which every rank has another."""

    def __getitem__(self, index):
        x, number = super().__getitem__(index)
        return x + torch.randn(3), number


def load(rank):
    torch.manual_seed(rank if WHAT in ("data", "split") else 0)
    x = torch.randn(48, 3) if WHAT == "data" else torch.ones(48, 3)
    data = (Augmented if WHAT == "augmented" else TensorDataset)(x, torch.arange(48))
    if WHAT == "split":
        data, _ = random_split(data, [32, 16])
    torch.manual_seed(rank)
    return data


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = load(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data, seed=rank if WHAT == "seed" else 0)
    loader = DataLoader(data, 2 + rank if WHAT == "batch_size" else 2, sampler=sampler)
    with open(f"seen.{rank}", "w") as out:
        for epoch in range(2):
            if WHAT == "look" and rank == 0:
                next(iter(loader))
            sampler.set_epoch(epoch)
            for x, number in loader:
                print(*number.tolist(), file=out, end=" ")
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            print(file=out)
    dist.destroy_process_group()


main()
