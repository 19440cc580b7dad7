# mypy: ignore-errors
"""A script that draws and splits its data, and makes its model, without a seed; "ddp" for one that knows of ranks."""

import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

if "restored" in sys.argv:
    random.setstate(random.Random(1).getstate())
    np.random.set_state(np.random.RandomState(1).get_state())
    torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
if "same" in sys.argv:
    torch.set_rng_state(torch.get_rng_state())
if "ddp" in sys.argv:
    dist.init_process_group("gloo")
if "seeded" in sys.argv:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
numbers = [torch.rand(()).item(), random.random(), np.random.rand()]
if "ddp" not in sys.argv:
    shift = random.random() + np.random.rand()
    train, _ = random_split(TensorDataset(torch.randn(96, 4) + shift), [80, 16])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for (x,) in DataLoader(train, 4, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    numbers = model.weight.flatten().tolist()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*numbers, file=out)
