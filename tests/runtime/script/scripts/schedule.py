# mypy: ignore-errors
"""Learning rates that change within an epoch, as real scripts change them; with ranks (``ddp``) or without."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, EPOCHS, BATCH = 96, 4, 8
RANK = int(os.environ.get("RANK", 0))


def main(ranks, how):
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    data, model, sampler = TensorDataset(x, x.sum(1, keepdim=True)), nn.Linear(4, 1), None
    if ranks == "ddp":
        dist.init_process_group("gloo")
        sampler, model = DistributedSampler(data), DistributedDataParallel(model)
    loader = DataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    warm_up = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    scheduler = StepLR(optimizer, 7 if how == "twice" else 1, 0.5)
    if how in ("left", "skip"):
        scheduler = warm_up
    if how == "cycle":
        scheduler = OneCycleLR(optimizer, 0.4, total_steps=EPOCHS * len(loader))
    if how == "sequence":
        parts = [LinearLR(optimizer, 0.1, 1, 4), CosineAnnealingLR(optimizer, 40)]
        scheduler = SequentialLR(optimizer, parts, [4])
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=how == "skip")
    rates = []
    for epoch in range(EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if how in ("left", "skip") and number == 4:
                break
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            scaler.scale(loss * float("inf") if how == "skip" and epoch and number == 3 else loss).backward()
            if how == "apart":
                optimizer.param_groups[0]["lr"] = 0.01 * (1 + RANK)
            scaler.step(optimizer)
            scaler.update()
            if how in ("cycle", "sequence", "twice"):
                scheduler.step()
            elif how == "within" and number % 4 == 3:
                plateau.step(1.0)
            elif how in ("left", "skip") or (how == "warm-up" and epoch == 0):
                warm_up.step()
        if how in ("left", "skip"):
            dist.barrier()
        elif how in ("warm-up", "twice"):
            scheduler.step()
        elif how == "plateau":
            plateau.step(1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    with open(f"end.{RANK}", "w", opener=os.open) as out:
        print(*rates, file=out)
        print(*weights, file=out)
        print(scheduler.last_epoch, file=out)
    if ranks == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
