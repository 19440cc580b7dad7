# mypy: ignore-errors
"""A script with two loops and a collective between them, or within the second before its first step.

Argument: which of its shapes.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(1, 1))
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(batch, reduce=False):
    optimizer.zero_grad()
    loss = (model(batch[0]) - batch[0]).square().mean()
    if reduce:
        dist.all_reduce(loss.detach().clone())
    loss.backward()
    optimizer.step()
    return 1


def same_iterator():
    """Timed steps after some that are not."""
    reading, first = iter(loader), 0
    for batch in reading:
        first += step(batch)
        if first == 3:
            break
    dist.barrier()
    return [first, sum(step(batch) for batch in reading)]


def two_loops():
    first = second = 0
    for batch in loader:
        first += step(batch)
    for batch in loader:
        second += step(batch, reduce=True)
    return [first, second]


def drawn():
    """Data of no loader."""
    first = second = 0
    for _ in range(8):
        first += step((torch.rand(4, 1),))
    for _ in range(8):
        second += step((torch.rand(4, 1),), reduce=True)
    return [first, second]


def optimizers():
    """A loop around the step that is not the one over the data, as in a library's wrapper."""

    def several(batch):
        (model(batch[0]) - batch[0]).square().mean().backward()
        for each in [optimizer]:
            each.step()
        dist.all_reduce(torch.ones(1))
        return 1

    return [sum([several(batch) for batch in loader]), sum([several(batch) for batch in loader])]


def stepping_generator():
    """It steps itself, and waits while the script is at a collective."""

    def steps():
        for batch in loader:
            yield step(batch)

    made = steps()
    first = next(made)
    dist.barrier()
    return [first, sum(made)]


print(
    sum(
        {each.__name__: each for each in (same_iterator, two_loops, drawn, optimizers, stepping_generator)}[
            sys.argv[1]
        ]()
    )
)
dist.destroy_process_group()
