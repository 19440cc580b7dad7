# mypy: ignore-errors
"""A script whose weights show which samples are in them; it knows of its ranks, or is for a single process."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from polyrhythm.testing.coordinates import SampleWeights

WHAT, SAMPLES, EPOCHS = sys.argv[1:], 44, 3


class Numbers(Dataset):
    """Samples that are nothing but their numbers; two kinds of them."""

    def __init__(self):
        self.targets = [number % 2 for number in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


data = Numbers()
options = {"batch_size": 4, "drop_last": "drop" in WHAT}
model = SampleWeights(SAMPLES)
if "ranks" in WHAT:
    dist.init_process_group("gloo")
    loader = DataLoader(data, sampler=DistributedSampler(data, shuffle="ordered" not in WHAT), **options)
    model = DistributedDataParallel(model)
elif "own" in WHAT:
    loader = DataLoader(data, batch_sampler=[[0, 1], [2, 3]])
else:
    loader = DataLoader(data, shuffle="ordered" not in WHAT, **options)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
parts = 2 if "parts" in WHAT else 1
next(iter(loader))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
with open(f"seen.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            print(*batch.tolist(), file=out, end=" ")
            model(batch).backward()
            if (number + 1) % parts == 0:
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        print(file=out)
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[value for p in model.parameters() for value in p.tolist()], file=out)
print("schedule", schedule.last_epoch)
