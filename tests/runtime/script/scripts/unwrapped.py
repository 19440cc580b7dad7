# mypy: ignore-errors
"""A script that trains what it has not wrapped: a ``copy`` of the wrapper, a ``head``, a ``probe`` between epochs.

Or the ``best`` copies of model and optimizer.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WHAT = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(32, 4)
loader = DataLoader(x, 4, sampler=DistributedSampler(x))
model, head = DistributedDataParallel(nn.Linear(4, 4)), nn.Linear(4, 1)
trained = copy.deepcopy(model) if WHAT == "copy" else model
optimizer = torch.optim.SGD([*trained.parameters(), *(head.parameters() if WHAT == "head" else ())], lr=0.1)


def probe():
    probing = nn.Linear(4, 1)
    its_optimizer = torch.optim.SGD(probing.parameters(), lr=0.1)
    for batch in DataLoader(x, 8):
        its_optimizer.zero_grad()
        probing(batch).square().mean().backward()
        its_optimizer.step()


best = None
for _ in range(3):
    for batch in loader:
        optimizer.zero_grad()
        out = trained(batch)
        (head(out) if WHAT == "head" else out).square().mean().backward()
        optimizer.step()  # of the first training
    if WHAT == "probe":
        probe()
    if WHAT == "best":
        kept, best = best, copy.deepcopy((trained, optimizer))
        trained, optimizer = kept or (trained, optimizer)
dist.destroy_process_group()
