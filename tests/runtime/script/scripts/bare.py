# mypy: ignore-errors
"""No model that is called in training mode (tensors of no module, a model in evaluation mode), or one mini-batch."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WHAT = sys.argv[1]
torch.manual_seed(0)
if WHAT == "tensors":
    weights = [torch.zeros(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    compute = lambda x: x @ weights[0] + weights[1]  # noqa: E731
else:
    compute = nn.DataParallel(nn.Linear(4, 1)).eval()
    weights = [*compute.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
(once,) = next(iter(DataLoader(TensorDataset(torch.randn(64, 4)), 8)))
for _ in range(20):
    x = once if WHAT == "once" else torch.randn(8, 4)
    if WHAT == "once":
        compute.train()
        x = x + 0.1 * torch.randn(8, 4)
    optimizer.zero_grad()
    (compute(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
with open(f"weights.{os.environ.get('RANK', 0)}", "w") as out:
    print(*torch.cat([p.detach().flatten() for p in weights]).tolist(), file=out)
