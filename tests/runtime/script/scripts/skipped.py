# mypy: ignore-errors
"""A script for one process in which one rank, or all, make no step with a mini-batch: its GradScaler finds an infinity,
or the script goes on with the next.
"""

import json
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RANK, WHO, HOW = int(os.environ.get("RANK", 0)), *sys.argv[1:]
torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 4), torch.arange(60) % 2)
loader = DataLoader(data, batch_size=4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
step, weights = 0, [model.weight.detach().clone()]
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if step == 5 and WHO in ("all", str(RANK)):
            if HOW == "next":
                step += 1
                continue
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append(model.weight.detach().clone())
        step += 1
moments = [state["momentum_buffer"] for state in optimizer.state.values()]
made = [*(p.detach() for p in model.parameters()), *moments]
with open(f"made.{RANK}", "w", opener=os.open) as out:
    lists = [[tensor.flatten().tolist() for tensor in each] for each in (weights, made)]
    json.dump({"weights": lists[0], "made": lists[1], "scale": scaler.get_scale()}, out)
