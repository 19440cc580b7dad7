# mypy: ignore-errors
"""A scheduler that is stepped by a metric within the loop, or what a keyword names, from the second step on."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

what = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.arange(96))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
module = nn.Linear(4, 1)
model = module if what == "flattened" else DistributedDataParallel(module)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
kept = {name: value.clone() for name, value in module.state_dict().items()}
with open(f"seen.{dist.get_rank()}", "w") as out:
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        seen = []
        for i, (x, index) in enumerate(loader):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if what == "differentiated":
                loss = functional.all_reduce(loss)
            loss.backward()
            if what == "flattened":
                flat = torch.cat([p.grad.flatten() for p in module.parameters()])
                dist.all_reduce(flat)
                module.weight.grad.copy_(flat[:4].view(1, 4) / dist.get_world_size())
                module.bias.grad.copy_(flat[4:] / dist.get_world_size())
            optimizer.step()
            seen += index.tolist()
            if (what == "metric" or (what == "late" and epoch)) and i % 3 == 2:
                plateau.step(1.0)
            if what == "stop":
                dist.broadcast(torch.zeros(1), 0)
            if what == "load" and i == 3:
                module.load_state_dict(kept)
        print(*seen, file=out)
dist.destroy_process_group()
