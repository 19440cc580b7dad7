# mypy: ignore-errors
"""Parameters of other types than float32, and optimizers whose state servers cannot hold."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Rows(torch.optim.Optimizer):
    """An optimizer of the script's own; its state is a list, a number, and bytes."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["codes"] = [torch.zeros(3, dtype=torch.uint8)] if not state else state["codes"]
                state["steps"] = state.get("steps", 0) + 1
                state["codes"][0].add_(1)
                p.add_(p.grad, alpha=-group["lr"] / state["steps"])


class Wide(nn.Module):
    def forward(self, x):
        return x.float()


WHAT = sys.argv[1]
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "double": torch.float64}
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)) + 1)
if "alone" in sys.argv:
    loader = DataLoader(data, 4)
else:
    dist.init_process_group("gloo")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(KINDS.get(WHAT, torch.float32))
if WHAT == "mixed":
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), Wide(), nn.Tanh(), nn.Linear(4, 1))
if WHAT in ("sparse", "sparse adam"):
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(), nn.Linear(16, 1, bias=False))
    if WHAT == "sparse adam":
        model = nn.Sequential(nn.Embedding(8, 4, sparse=True))
makes = {"own": Rows, "sparse adam": torch.optim.SparseAdam, "sparse": torch.optim.SGD, "fp16": torch.optim.SGD}
kind = makes.get(WHAT) or getattr(torch.optim, WHAT, torch.optim.AdamW)
optimizer = kind(model.parameters(), lr=0.02)
if dist.is_initialized():
    model = DistributedDataParallel(model)
if WHAT in ("evaluation mode", "clipped"):
    model.eval()  # as dropout and batch normalization are to stand still
for epoch in range(3):
    for (x,) in loader:
        x = x.mul(3).long().clamp(0, 7) if "sparse" in WHAT else x.to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if WHAT == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if WHAT == "late" and epoch == 0:  # as DINO's last layer
            list(model.parameters())[-1].grad = None
        optimizer.step(*[torch.zeros(1).sum] * (WHAT == "LBFGS"))
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[x for p in model.parameters() for x in p.detach().double().flatten().tolist()], file=out)
