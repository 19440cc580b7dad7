# mypy: ignore-errors
"""No loader, and no model that is called in training mode: tensors of no module, or a model in evaluation mode."""

import os
import sys

import torch
from torch import nn

WHAT = sys.argv[1]
torch.manual_seed(0)
if WHAT == "tensors":
    weights = [torch.zeros(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    compute = lambda x: x @ weights[0] + weights[1]  # noqa: E731
else:
    compute = nn.DataParallel(nn.Linear(4, 1)).eval()
    weights = [*compute.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
for _ in range(20):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    (compute(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
with open(f"weights.{os.environ.get('RANK', 0)}", "w") as out:
    print(*torch.cat([p.detach().flatten() for p in weights]).tolist(), file=out)
