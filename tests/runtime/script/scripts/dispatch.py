# mypy: ignore-errors
"""Rank 0 reads a stream and hands its mini-batches on, as Accelerate's dispatcher does.

The first argument says whether the others make an iterator, too, which they do not ask; the second what goes wrong,
or "two" for two optimizers.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WHAT, FAULT = sys.argv[1], (*sys.argv[2:], "")[0]
X = torch.randn(88, 4, generator=torch.Generator().manual_seed(1))


class Stream(IterableDataset):
    def __iter__(self):
        for number, x in enumerate(X):
            if FAULT == "reading" and number == 40:
                raise ValueError("the stream is broken")
            yield x, x.sum(0, keepdim=True), torch.tensor(number)


def read(source):
    """The structure of the mini-batches of all ranks, and these on rank 0."""
    parts = []
    if dist.get_rank() == 0:
        parts = [part for part in (next(source, None) for _ in range(dist.get_world_size())) if part is not None]
    batch = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    told = [[(each.shape, each.dtype) for each in batch] or None]
    dist.broadcast_object_list(told)
    return batch, told[0]


def dispatched(loader):
    """Each rank's slices; the next mini-batch is read before the one at hand is given."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    source = iter(loader) if rank == 0 or WHAT == "idle" else None
    following = read(source)
    while following[1] is not None:
        batch, told = following
        if rank != 0:
            batch = [torch.empty(shape, dtype=dtype) for shape, dtype in told]
        for each in batch:
            dist.broadcast(each, 0)
        following = read(source)
        size = len(batch[0]) // ranks
        yield [each[rank * size : (rank + 1) * size] for each in batch]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    first, last = model.module[0].parameters(), model.module[2].parameters()
    groups = [[*first], [*last]] if FAULT == "two" else [model.parameters()]
    optimizers = [torch.optim.Adam(group, lr=0.05) for group in groups]
    loader = DataLoader(Stream(), 4)
    with open(f"seen.{rank}", "w") as out:
        for epoch in range(3):
            for number, (x, y, index) in enumerate(dispatched(loader)):
                if FAULT == "stepping" and epoch == rank == 1 and number == 3:
                    raise ValueError("the worker is broken")
                model.zero_grad()
                (model(x) - y).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
                print(*index.tolist(), file=out, end=" ")
            print(file=out)
            with torch.no_grad():
                loss = (model(X) - X.sum(1, keepdim=True)).square().mean()
            losses = [torch.empty(1) for _ in range(dist.get_world_size())]
            dist.all_gather(losses, loss.reshape(1))
            print(torch.cat(losses).tolist())
    dist.destroy_process_group()
    with torch.no_grad(), open(f"weights.{rank}", "w") as weights:
        print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=weights)


main()
