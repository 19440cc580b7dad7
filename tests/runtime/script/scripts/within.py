# mypy: ignore-errors
"""Steps that are made within the wrapper's forward, which then exchanges nothing more: Lightning's manual steps."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
compute = model.forward


def step(x, y):
    model.forward = compute
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    if ddp.require_backward_grad_sync:
        ddp.reducer._rebuild_buckets()
        ddp.reducer.prepare_for_backward([])
    loss.backward()
    optimizer.step()
    ddp.require_backward_grad_sync = False


for _ in range(2):
    for x, y in loader:
        model.forward = step
        ddp(x, y)
        ddp.require_backward_grad_sync = True
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
dist.destroy_process_group()
