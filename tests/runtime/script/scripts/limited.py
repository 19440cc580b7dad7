# mypy: ignore-errors
"""A script that ends after a number of steps, in the middle of an epoch, and whose ranks meet then.

Arguments: the steps, and 1 if rank 1 makes only two of them before rank 0 has made all.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, UNEVEN = int(sys.argv[1]), sys.argv[2] == "1"
RANK, FIRST = int(os.environ["RANK"]), Path("rank-0-is-out")

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(64, 4, generator=generator))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = epoch = 0
while step < STEPS:
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        step += 1
        while UNEVEN and RANK and step == 2 and not FIRST.exists():
            time.sleep(0.01)
        if step == STEPS:
            break
    epoch += 1
if not RANK:
    FIRST.touch()
steps = torch.tensor([float(step)])
dist.all_reduce(steps)
dist.barrier()
with open(f"weights.{RANK}", "w") as out:
    print(*[x.hex() for p in model.parameters() for x in p.detach().flatten().tolist()], int(steps), file=out)
dist.destroy_process_group()
