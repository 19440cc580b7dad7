# mypy: ignore-errors
"""A script with ranks that draws random numbers beside its mini-batches; its last line is where they stand.

Argument: ``looks``: it evaluates with gradients enabled before it trains, and between its epochs; ``held``: it does so
on its training data; ``late``: it sets the sampler's epoch after a process has begun to read; ``stays``: the processes
of its loader outlive an epoch; ``glance``: and the script looks at one mini-batch before each epoch.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WHAT = sys.argv[1]


class Crops(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        crop = torch.rand(4)
        return crop + index / 8, crop.sum(0, keepdim=True)


def evaluate():
    model.eval()
    total = sum(mse_loss(model(x), y).detach() for x, y in valid)
    model.train()
    return total


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data, stays = Crops(48), WHAT in ("stays", "glance")
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler, num_workers=2 * stays + (WHAT == "late"), persistent_workers=stays)
valid = DataLoader(Crops(16), 4, sampler=DistributedSampler(range(16))) if WHAT == "looks" else loader
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if WHAT == "looks":
    evaluate()
for epoch in range(3):
    if WHAT == "glance":
        next(iter(loader))
    if WHAT != "late":
        sampler.set_epoch(epoch)
    batches = iter(loader)
    sampler.set_epoch(epoch)
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    if WHAT in ("looks", "held"):
        evaluate()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", encoding="utf-8") as out:
    print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
    print(torch.rand(1).item(), file=out)
dist.destroy_process_group()
