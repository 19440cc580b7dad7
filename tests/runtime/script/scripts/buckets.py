# mypy: ignore-errors
"""Trains parameters, once or twice, whose place in DistributedDataParallel's buckets is another one from step 2 on."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND, WIDTH = sys.argv[1], int(sys.argv[2])
OPTIONS = {"static": {"static_graph": True}, "views": {"gradient_as_bucket_view": True}}
RANK = os.environ["RANK"]

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
net[0].requires_grad_(KIND != "thawed")
model = DistributedDataParallel(net, **OPTIONS.get(KIND, {}))
if KIND == "static later":
    model._set_static_graph()
data = TensorDataset(torch.randn(240, 64), torch.randint(0, 10, (240,)))
loader = DataLoader(data, 16, sampler=DistributedSampler(data, seed=3))
for training in range(2 if KIND in ("twice", "frozen", "thawed") else 1):
    net[0].requires_grad_(("frozen" if training else "thawed") != KIND)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
with open(f"weights.{RANK}", "w", encoding="utf-8", opener=os.open) as out:
    print(*(hashlib.sha1(p.detach().numpy().tobytes()).hexdigest() for p in net.parameters()), file=out)
dist.destroy_process_group()
