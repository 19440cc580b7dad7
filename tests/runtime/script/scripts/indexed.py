# mypy: ignore-errors
"""A table of rates, one for each mini-batch of all epochs, as for self-supervised models."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, RANK = 3, int(os.environ.get("RANK", 0))


def logged(loader):
    yield from loader


def train(model, optimizer, loader, rates, epoch):
    taken = 0
    for number, (x,) in enumerate(logged(loader)):
        number = len(loader) * epoch + number
        for group in optimizer.param_groups:
            group["lr"] = rates[number]
        optimizer.zero_grad()
        for _ in range(1 + 9 * RANK):  # one rank is slower
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        taken += 1
    return taken


dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 64))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
rates = [0.1 / (1 + number) for number in range(EPOCHS * len(loader))]
with open(f"taken.{RANK}", "w") as out:
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        print(train(model, optimizer, loader, rates, epoch), file=out)
with open(f"weights.{RANK}", "w") as out:
    print(sum(p.double().sum().item() for p in model.parameters()), file=out)
