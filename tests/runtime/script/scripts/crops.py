# mypy: ignore-errors
"""A script with ranks whose loader processes draw random numbers, as for crops of images.

With an argument they stay, and a mini-batch is read ahead.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, AHEAD = int(os.environ.get("RANK", 0)), len(sys.argv) > 1


class Crops(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        crop = torch.rand(4)
        return crop + index, crop.sum(0, keepdim=True), index


def ahead(loader):
    before = None
    for batch in loader:
        if before is not None:
            yield before
        before = batch
    yield before


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = Crops()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=AHEAD)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = optim.SGD(model.parameters(), lr=1e-4)
    with open(f"seen.{RANK}", "w") as out:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y, index in ahead(loader) if AHEAD else loader:
                print(*index.tolist(), file=out, end=" ")
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            print(file=out)
    with open(f"weights.{RANK}", "w") as out:
        print(*torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), file=out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
