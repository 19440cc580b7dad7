# mypy: ignore-errors
"""A script one rank of which goes on with the next mini-batch: before the forward pass, or before the backward pass.

Arguments: what kind of script, which rank, in which mini-batches, and before what.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

RANK = int(os.environ.get("RANK", 0))
WHAT, WHO, BATCHES, BEFORE = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",")], sys.argv[4]
OPTIONS = {"unused": {"find_unused_parameters": True}, "static": {"static_graph": True}}.get(WHAT, {})
data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(2)) + 1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data.tensors[0][RANK::2].unsqueeze(1).split(1))


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return self.used(x)


if WHAT.startswith("alone"):
    loader, wrap = DataLoader(data, 4), lambda module: module
else:
    dist.init_process_group("gloo")
    loader, wrap = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False)), DistributedDataParallel
if WHAT == "stream":
    loader = DataLoader(Stream(), batch_size=None)
torch.manual_seed(0)
model = Partly() if WHAT == "unused" else nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
if WHAT == "sparse":
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(), nn.Linear(16, 1, bias=False))
if WHAT == "stream":
    model = nn.Linear(4, 1)
several = WHAT == "gan" or "several" in WHAT
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled="scaled" in WHAT)
maker = wrap(nn.Linear(4, 4)) if several else nn.Identity()
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if WHAT == "sparse" else 0.9)]
optimizers += [torch.optim.Adam(maker.parameters(), lr=0.01)] if several else []
model = wrap(model, **OPTIONS) if OPTIONS else wrap(model)
parts = 2 if WHAT == "parts" else 1
number = 0
for _ in range(2):
    for i, (x,) in enumerate(loader):
        number += 1
        aside = RANK == WHO and number in BATCHES
        x = x.mul(3).long().clamp(0, 7) if WHAT == "sparse" else x
        if aside and BEFORE == "forward":
            continue
        loss = model(maker(x)).square().mean()
        if aside and BEFORE == "backward":
            continue
        if aside and BEFORE == "infinite":
            loss = loss * float("inf")
        scaler.scale(loss / parts).backward()
        if BEFORE == "infinite":
            scaler.unscale_(optimizers[-1])
        if i % parts == parts - 1:
            for optimizer in optimizers[: 1 if aside and BEFORE == "second" else None]:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
with open(f"weights.{RANK}", "w", opener=os.open) as out:
    numbers = [x for m in (model, maker) for p in m.parameters() for x in p.detach().flatten().tolist()]
    print(*[f"{x:.9g}" for x in numbers], file=out)
