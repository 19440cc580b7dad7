# mypy: ignore-errors
"""Each rank reads a stream of its own length, and all tell each other within the loop who has data left.

The first argument says how they agree: "any" ends all when one has no data left, "all" when none has, and who has none
goes on with its last mini-batch; others are shapes of the loop. The second says where a rank reads for itself alone.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

HOW, ASIDE = sys.argv[1], (*sys.argv[2:], "")[0]
LENGTHS = [14, 8, 10]


class Stream(IterableDataset):
    empty = False

    def __iter__(self):
        generator = torch.Generator().manual_seed(10 + dist.get_rank())
        for _ in range(0 if self.empty else 14 if ASIDE else LENGTHS[dist.get_rank()]):
            yield torch.randn(4, generator=generator)


stream = Stream()
loader = DataLoader(stream, 2)


def agree(goes_on, most):
    flag = torch.tensor([float(goes_on)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX if most else dist.ReduceOp.MIN)
    return bool(flag)


def agreed():
    """A generator within which the ranks agree."""
    source, last = iter(loader), torch.zeros(2, 4)
    while agree((batch := next(source, None)) is not None, most=HOW == "all"):
        last = last if batch is None else batch
        yield last


def called():
    """The same from a loop of the script's own, with one mini-batch read ahead."""
    source = iter(loader)
    batch = next(source)
    while agree(batch is not None, most=False):
        following = next(source, None)
        step(batch)
        batch = following


def again():
    """Who has no data left begins anew, until all have read theirs."""
    source, done = iter(loader), False
    while True:
        if (batch := next(source, None)) is None:
            source, done = iter(loader), True
            batch = next(source)
        if not agree(not done, most=True):
            break
        step(batch)


def for_ever():
    while True:
        yield from loader


def step(x):
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    made.append(x)


def evaluate(batches):
    model.eval()
    result = sum(model.module(x).mean().item() for x in batches)
    model.train()
    return result


def epoch():
    if HOW == "called":
        called()
    elif HOW == "again":
        again()
    elif HOW == "cycled":
        for _ in range(10):
            step(next(source))
    else:
        for x in loader if ASIDE else agreed():
            step(x)
            if ASIDE == "within" and len(made) % 7 == 3:
                look()


def look():
    if dist.get_rank() == 0:
        print(evaluate(loader), evaluate(DataLoader(torch.ones(6, 4), 2)))
    dist.barrier()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
made, source = [], for_ever()
for number in range(3):
    stream.empty = HOW == "empty" and number == dist.get_rank() == 1
    if ASIDE == "between":
        look()
    epoch()
    with torch.no_grad():
        print(len(made), model(torch.ones(1, 4)).item(), sum(p.sum().item() for p in model.state_dict().values()))
dist.barrier()
with open(f"weights.{dist.get_rank()}", "w", encoding="utf-8") as file:
    print(*torch.cat([p.flatten() for p in model.parameters()]).tolist(), file=file)
dist.destroy_process_group()
