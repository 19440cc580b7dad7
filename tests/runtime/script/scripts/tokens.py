# mypy: ignore-errors
"""A loss that is divided by the number of tokens that all ranks have, as in Hugging Face's Trainer."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(1, 9, (96,)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(2):
    for x, lengths in loader:
        gathered = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, lengths.sum())
        loss = ((model(x) - 1).square().flatten() * lengths).sum() / sum(gathered) * dist.get_world_size()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with open(f"weights.{os.environ['RANK']}", "w") as out:
    print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=out)
