# mypy: ignore-errors
"""One small script with one thing that cannot be adapted; its name is the first argument."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

WHAT = sys.argv[1]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(3)] * 40)


class Twice(DistributedSampler):
    def __iter__(self):
        return iter([index // 2 for index in super().__iter__()])


def child(rank):
    pass


def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following


data = TensorDataset(torch.randn(48, 3))
if WHAT == "mp.spawn":
    mp.spawn(child, nprocs=2)
if not WHAT.startswith("alone"):
    if WHAT != "no group":
        dist.init_process_group("gloo")
    data_sampler = (Twice if WHAT == "twice" else DistributedSampler)(data, num_replicas=1, rank=0)
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
if WHAT == "float64":
    model = model.double()
if WHAT == "sparse":
    model = nn.Sequential(nn.Embedding(4, 1, sparse=True), nn.Flatten(0))
if WHAT == "FSDP":
    FullyShardedDataParallel(model)
if WHAT == "fully_shard":
    fully_shard(model)
if WHAT == "parallelize":
    parallelize_module(model, None, {})
if WHAT == "DataParallel":
    nn.DataParallel(model)
if WHAT == "mixed precision":
    DistributedDataParallel(model, mixed_precision=torch.float16)
if not WHAT.startswith("alone"):
    group = dist.new_group([0]) if WHAT == "process_group" else None
    model = DistributedDataParallel(model, process_group=group)
if WHAT == "second model":
    DistributedDataParallel(nn.Linear(3, 1))
if WHAT == "Join":
    with Join([model]):
        pass
kind = torch.optim.Adafactor if WHAT == "Adafactor" else torch.optim.SGD
optimizer = kind(model.parameters(), lr=0.1, **({"fused": True} if WHAT == "fused" else {}))
scaler = torch.amp.GradScaler("cpu", enabled=WHAT == "fused")
if WHAT == "no loader":
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()  # of nothing
if WHAT == "ZeRO":
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
if WHAT == "partial":
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.1)
other = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = {
    "iterable": lambda: DataLoader(Stream(), 4),
    "shuffle": lambda: DataLoader(data, 4, shuffle=True),
    "batch_sampler": lambda: DataLoader(data, batch_sampler=[[0, 1], [2, 3], [4, 5], [6, 7]]),
    "alone, weighted": lambda: DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 48, 48)),
    "alone, replacement": lambda: DataLoader(data, 4, sampler=RandomSampler(data, replacement=True)),
}
loader = loaders.get(WHAT, lambda: DataLoader(data, 4, sampler=None if WHAT[:5] == "alone" else data_sampler))()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for number, x in enumerate(ahead(loader) if WHAT == "ahead" else loader):
    x = x[0] if isinstance(x, list) else x
    x = x.double() if WHAT == "float64" else x.abs().long().clamp(max=3)[:, 0] if WHAT == "sparse" else x
    optimizer.zero_grad()
    loss = model(x).square().mean()
    for _ in range(200 if WHAT == "by hand" else 1):
        scaler.scale(loss).backward(retain_graph=True)
    if WHAT == "all_reduce":
        dist.all_reduce(loss.detach())
    if WHAT == "fused":
        scaler.step(optimizer)
    optimizer.step(*([loss.item] if WHAT == "closure" else []))
    if WHAT == "again" and number > 1:
        optimizer.step()  # of the same mini-batch
    if WHAT == "scheduler" and number % 2:
        scheduler.step()
    if WHAT == "two optimizers":
        other.step()
