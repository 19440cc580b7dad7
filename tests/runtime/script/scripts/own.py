# mypy: ignore-errors
"""Ways to read data that no job can deal out; the first argument says which, the second who knows of ranks."""

import os
import sys
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

WHAT, RANKS, EPOCHS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SAMPLES, BATCH = 96, 4
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
X = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.sum(1, keepdim=True), torch.arange(SAMPLES))


class Stream(IterableDataset):
    """Each rank has every nth sample; with "uneven" the higher ranks have fewer."""

    def __iter__(self):
        first, step = (RANK, WORLD) if RANKS == "ddp" else (0, 1)
        stop = SAMPLES - 40 * RANK * (WHAT == "uneven")
        return (DATA[index] for index in range(first, stop, step))


class Buckets:
    """A batch sampler: mini-batches of neighbours, in a random order."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        indices = list(self.sampler)
        batches = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
        return (batches[number] for number in torch.randperm(len(batches)).tolist())

    def __len__(self):
        return -(-len(self.sampler) // BATCH)


class Twice(DistributedSampler):
    """Repeats each sample of a rank, as for repeated augmentation."""

    def __iter__(self):
        return iter([index // 2 * 2 for index in super().__iter__()])


def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


def counted(loader):
    """As the loops of frameworks do: no look beyond the last mini-batch, and all of a step before its first pass."""
    batches, left = iter(loader), len(loader)
    while left:
        together = [next(batches) for _ in range(min(left, 2 if WHAT == "grouped" else 1))]
        left -= len(together)
        yield from together


def make_loader():
    sampler = DistributedSampler(DATA) if RANKS == "ddp" else range(SAMPLES)
    if WHAT in ("stream", "uneven", "left"):
        return DataLoader(Stream(), BATCH)
    if WHAT == "buckets":
        return DataLoader(DATA, batch_sampler=Buckets(sampler))
    if WHAT == "weighted":
        return DataLoader(DATA, BATCH, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES // WORLD))
    if WHAT == "twice":
        return DataLoader(DATA, BATCH, sampler=Twice(DATA))
    return DataLoader(DATA, BATCH, sampler=sampler)


def get_batch():
    indices = torch.randint(SAMPLES, (BATCH,))
    return DATA[indices]


def batches(loader, epoch):
    if isinstance(getattr(loader, "sampler", None), DistributedSampler):
        loader.sampler.set_epoch(epoch)
    if WHAT == "drawn":
        return (get_batch() for _ in range(12))
    if WHAT == "pairs":
        both = zip(loader, make_loader(), strict=True)
        return ([torch.cat(pair) for pair in zip(*each, strict=True)] for each in both)
    ways = {"ahead": ahead, "counted": counted, "grouped": counted, "left": lambda loader: islice(loader, 6)}
    return ways[WHAT](loader) if WHAT in ways else loader


def step(model, optimizer, x, y):
    def closure():
        if WHAT != "grouped":
            optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    if WHAT == "closure":
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main():
    torch.manual_seed(RANK if RANKS == "ddp" else 0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    if RANKS == "ddp":
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = None if WHAT == "drawn" else make_loader()
    with open(f"seen.{RANK}", "w", opener=os.open) as out:
        for epoch in range(EPOCHS):
            for number, (x, y, index) in enumerate(batches(loader, epoch), 1):
                if WHAT == "grouped" and number % 2:
                    (model(x) - y).square().mean().backward()
                else:
                    loss = step(model, optimizer, x, y)
                print(*index.tolist(), file=out, end=" ")
            print(file=out)
            if WHAT == "left":
                dist.broadcast(torch.zeros(1), 0)
            if WHAT != "drawn":
                with torch.no_grad(), open(f"weights.{RANK}.{epoch}", "w", opener=os.open) as weights:
                    print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=weights)
    print(f"loss {loss.item():.3f}")
    if RANKS == "ddp":
        dist.destroy_process_group()
    with torch.no_grad(), open(f"weights.{RANK}.{EPOCHS}", "w", opener=os.open) as weights:
        print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=weights)


if __name__ == "__main__":
    main()
