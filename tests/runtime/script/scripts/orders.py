# mypy: ignore-errors
"""A script whose ranks launch two collectives of two groups in different orders after an epoch, and wait for both."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.environ["RANK"])

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
data = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
sums = torch.ones(2)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    order = (0, 1) if RANK else (1, 0)
    for work in [dist.all_reduce(sums[k : k + 1], group=groups[k], async_op=True) for k in order]:
        work.wait()
print(*sums.tolist())
dist.destroy_process_group()
