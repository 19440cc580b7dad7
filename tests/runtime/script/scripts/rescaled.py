# mypy: ignore-errors
"""A script whose GradScalers come apart, because rank 1 alone has infinities in its third step.

rescaled.py wrapped|bare
"""

import json
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

RANK, WRAPPED = int(os.environ.get("RANK", 0)), sys.argv[1] == "wrapped"
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4)), 4)
model = nn.Linear(4, 1)
if WRAPPED:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
step = 0
for _epoch in range(4):
    for (x,) in loader:
        step += 1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if RANK == 1 and step == 3:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
with open(f"made.{RANK}", "w", opener=os.open) as out:
    json.dump({"made": [p.flatten().tolist() for p in model.parameters()], "scale": scaler.get_scale()}, out)
