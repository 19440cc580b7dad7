# mypy: ignore-errors
"""A layer that only every third forward pass uses, so that its state begins after the first step.

Arguments: the optimizer's class, and its options.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND, OPTIONS = sys.argv[1], {key: float(value) for key, value in (word.split("=") for word in sys.argv[2:])}


class Seldom(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.seldom, self.last, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1), 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x)
        return self.last(x if self.calls % 3 else x + self.seldom(x)).square().mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Seldom(), find_unused_parameters=True)
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
optimizer = getattr(torch.optim, KIND)(model.parameters(), **OPTIONS)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*[x.hex() for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
