# mypy: ignore-errors
"""Two loops of counted steps over the epochs of one generator; in the first the second rank comes to its end later.

Arguments: the steps that the first rank makes before the second goes on from its second and its fifth, and "kill" if
the second rank kills the coordinator in its eighth.
"""

import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from polyrhythm.testing.processes import first_child

STEPS, GATES = 21, [int(sys.argv[1])] * 4 + [int(sys.argv[2])] * 17
RANK = int(os.environ["RANK"])


def epochs():
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            yield epoch, batch
        epoch += 1


def train(steps, gates):
    seen = []
    for number in range(steps):
        epoch, (x, index) = next(reading)
        if RANK == 1 and number > 0 and gates:
            wait_for(gates[number])
            if number == 8 and "kill" in sys.argv:
                os.kill(first_child(int(os.environ["TEST_COORDINATOR_PID"])), signal.SIGKILL)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        seen += [(epoch, each) for each in index.tolist()]
        if RANK == 0:
            pathlib.Path(f"made.{number + 1}").touch()
    dist.barrier()
    return {"weights": [p.tolist() for p in model.parameters()], "seen": seen}


def wait_for(number):
    while not pathlib.Path(f"made.{number}").exists():
        time.sleep(0.01)


dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(1)), torch.arange(60))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reading = epochs()
first = train(STEPS, GATES)
second = train(20, [])
pathlib.Path(f"made.json.{RANK}").write_text(json.dumps([first, second]))
dist.destroy_process_group()
