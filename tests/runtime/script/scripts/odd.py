# mypy: ignore-errors
"""One small script with one thing that cannot be adapted; its name is the first argument."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WHAT = sys.argv[1]


class Ascent(torch.optim.SGD):
    """Climbs before it asks for gradients, as sharpness-aware minimization does."""

    def step(self, closure):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad)
        loss = closure()
        super().step()
        return loss


def child(rank):
    pass


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_gather([out := torch.empty_like(x)], x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Own:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        for p in self.parameters:
            p.data.add_(p.grad, alpha=-0.1)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


data = TensorDataset(torch.randn(48, 3))
if WHAT == "mp.spawn":
    mp.spawn(child, nprocs=2)
if not WHAT.startswith("alone"):
    if WHAT != "no group":
        dist.init_process_group("gloo")
    data_sampler = DistributedSampler(data, num_replicas=1, rank=0)
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
if WHAT == "hook":
    model.register_comm_hook(None, default_hooks.allreduce_hook)
if WHAT == "second model":
    DistributedDataParallel(nn.Linear(3, 1))
if WHAT == "Join":
    with Join([model]):
        pass
kinds = {"Adafactor": torch.optim.Adafactor, "LBFGS": torch.optim.LBFGS, "Ascent": Ascent}
kind = kinds.get(WHAT, torch.optim.SGD)
optimizer = kind(model.parameters(), lr=0.1, **({"fused": True} if WHAT == "fused" else {}))
scaler = torch.amp.GradScaler("cpu", enabled=WHAT == "fused")
if WHAT == "ZeRO":
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
if WHAT == "partial":
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.1)
if WHAT in ("own optimizer", "one step of its own"):
    optimizer = Own(model.parameters())
other = torch.optim.SGD(model.parameters(), lr=0.1)
aside = nn.Linear(3, 1)
its = torch.optim.SGD(aside.parameters(), lr=0.1)
loader = DataLoader(data, 4, sampler=None if WHAT[:5] == "alone" else data_sampler)
scheduler = torch.optim.lr_scheduler.StepLR(other, 3)
restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(other, 1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(other)
for number, x in enumerate(loader):
    x = x[0] if isinstance(x, list) else x
    x = x.double() if WHAT == "float64" else x.abs().long().clamp(max=3)[:, 0] if WHAT == "sparse" else x
    if WHAT == "functional":
        taken = {name: p.detach() for name, p in aside.named_parameters()}
        made = torch.func.grad(lambda taken, x=x: torch.func.functional_call(aside, taken, (x,)).sum())(taken)
        for name, p in aside.named_parameters():
            p.grad = made[name]
        its.step()  # of torch.func
    optimizer.zero_grad()
    loss = model(x).square().sum() if WHAT == "sum" else model(x).square().mean()
    if WHAT == "contrast":
        loss = loss + Gathered.apply(loss)
    if WHAT == "weighed":
        weight = loss.detach().clone()
        dist.all_reduce(weight)  # a factor of the loss
        loss = loss * weight
    scaler.scale(loss).backward()
    if WHAT == "all_reduce":
        dist.all_reduce(next(model.parameters()).grad)
    if WHAT == "by hand":
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)  # of gradients
        for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad.copy_(part.view_as(p))
    if WHAT == "broadcast":
        dist.broadcast(loss.detach(), 0)
    if WHAT == "fused":
        scaler.step(optimizer)
    optimizer.step(*([loss.item] if WHAT in ("LBFGS", "Ascent") else []))
    if WHAT == "again" and number > 1:
        optimizer.step()  # of the same mini-batch
    if WHAT == "by its forward" and number > 1:
        aside.forward(x).sum().backward()
        its.step()  # of a model that was not called
    if WHAT == "scheduler" and number % 2:
        scheduler.step()
    if WHAT == "fraction":
        restarts.step(number / len(loader))
    if WHAT == "plateau":
        plateau.step(loss.detach())
    if WHAT == "two optimizers":
        other.step()
    if WHAT == "one step of its own":
        break
