# mypy: ignore-errors
"""A script with DistributedDataParallel and a GradScaler, in which one rank makes no step with a mini-batch.

skipped_wrapped.py STEP before|after used|unused train|eval CLIPPED    # its forward pass, the scaler, the mode, steps
"""

import json
import os
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SKIPPED, WHEN, SCALER, MODE, CLIPPED = int(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.arange(96) % 2)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(4, 2)).train(MODE == "train")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)
step = 0
for _ in range(2):
    for x, y in loader:
        step += 1
        skips = step == SKIPPED and dist.get_rank() == 1
        if skips and WHEN == "before":
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if skips:
            continue
        if SCALER == "used":
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if step <= CLIPPED:
                clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if step <= CLIPPED:
                clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
with open(f"made.{dist.get_rank()}", "w", opener=os.open) as out:
    json.dump({"made": [p.flatten().tolist() for p in model.parameters()], "scale": scaler.get_scale()}, out)
dist.destroy_process_group()
