# mypy: ignore-errors
"""A tutorial's shape: processes of its own for each rank, which meet at a port that the script has chosen."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(rank, world_size, folder):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "1"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    with open(f"{folder}/weights.{rank}", "w") as out:
        print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2, Path.cwd()), nprocs=int(sys.argv[1]))
    print("all are done")
