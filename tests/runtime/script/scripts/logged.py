# mypy: ignore-errors
"""Collectives inside the loop, for the log: of a loss, before and after its backward pass, and a barrier at times.

With "seldom" only a mean, with every seventh step that the rank makes.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def mean_of_all(value, group=None):
    with torch.no_grad():
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value / dist.get_world_size()


dist.init_process_group("gloo")
world, side = dist.get_world_size(), dist.new_group(backend="gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
apart, steps, seldom = 0.0, 0, "seldom" in sys.argv
for epoch in range(2 + 2 * seldom):
    loader.sampler.set_epoch(epoch)
    for i, (x,) in enumerate(loader):
        loss = (model(x) - 1).square().mean()
        if seldom:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 7 == 0:
                mean_of_all(loss)
            continue
        shown = [mean_of_all(torch.stack([loss, 2 * loss]))[0].item()]  # torchvision's detection reference, DETR
        gathered = torch.empty(4 * world)
        dist.all_gather_into_tensor(gathered, loss.repeat(4))  # diffusers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown += [gathered.mean().item(), mean_of_all(torch.tensor(loss.item()), side).item()]  # MAE, timm
        if i % 5 == 0:
            dist.barrier()
        apart = max(apart, *(abs(value - loss.item()) for value in shown)) if epoch else apart
    ranks = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(ranks)  # the epoch is over, and this is real
    print(ranks.item())
print(apart < 1e-6)
