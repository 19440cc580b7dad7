# mypy: ignore-errors
"""A second optimizer, which first steps later than the first one.

Arguments: after how many steps, and what it is for: a `critic` that is first called then, one in a script `alone`,
which calls it `once` before, or the `same` parameters, of which it may be `made` only then, between two epochs.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

START, WAY = int(sys.argv[1]), sys.argv[2]
ALONE = WAY in ("alone", "once")


def wrapped(module):
    return module if ALONE else DistributedDataParallel(module)


if not ALONE:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model, critic = wrapped(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))), wrapped(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if WAY == "same":
    second = torch.optim.Adam(model.parameters(), lr=0.01)
elif WAY != "made":
    second = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
if WAY == "once":
    with torch.no_grad():
        critic(torch.zeros(1, 1))
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, 4, sampler=None if ALONE else DistributedSampler(data))
steps = 0
for epoch in range(3):
    if epoch == 1 and WAY == "made":  # under asp ranks count steps of their own
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for (x,) in loader:
        late = steps >= START
        chosen = second if late and WAY == "same" else optimizer
        chosen.zero_grad()
        made = model(x)
        made.square().mean().backward()
        chosen.step()  # of the model
        if late and WAY not in ("same", "made"):
            second.zero_grad()
            (critic(made.detach()) - 1).square().mean().backward()
            second.step()  # of the critic
        steps += 1
parameters = [*model.parameters(), *critic.parameters()]
rank = os.environ["RANK"]
with open(f"weights.{rank}", "w") as out:
    print(*[x.hex() for p in parameters for x in p.detach().flatten().tolist()], file=out)
if not ALONE:
    dist.destroy_process_group()
