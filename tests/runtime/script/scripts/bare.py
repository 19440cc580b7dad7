# mypy: ignore-errors
"""No model that is called in training mode, or one mini-batch, or a model whose `parameters` takes no argument."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WHAT = sys.argv[1]


class Learner(nn.Module):
    """Keeps its parameters in a list, as models of meta-learning do."""

    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([torch.zeros(4, 1), torch.zeros(1)])

    def forward(self, x):
        return x @ self.vars[0] + self.vars[1]

    def parameters(self):
        return self.vars


torch.manual_seed(0)
if WHAT == "tensors":
    weights = [torch.zeros(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    compute = lambda x: x @ weights[0] + weights[1]  # noqa: E731
elif WHAT == "own parameters":
    compute = Learner()
    weights = [*compute.parameters()]
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
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*torch.cat([p.detach().flatten() for p in weights]).tolist(), file=out)
