# mypy: ignore-errors
"""Two optimizers in a loop that counts its mini-batches and keeps what it reads, as in Lightning and Accelerate.

Arguments: how the steps are made, and what is done besides.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOW, BESIDES = sys.argv[1], sys.argv[2:]
RANK = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)) + 1)
critic, maker = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
model = wrapper = nn.ModuleList([critic, maker])
loader = DataLoader(data, 4)
if HOW != "alone":
    dist.init_process_group("gloo")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
if HOW == "ahead":
    critic, maker = map(DistributedDataParallel, (critic, maker))
elif HOW != "alone":
    wrapper = DistributedDataParallel(model, find_unused_parameters=True)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)


def train(number, x):
    for _ in range(3 if "eager" in BESIDES else 1):
        made = maker(-x)
        step(of_critic, (critic(x) - critic(made.detach())).square().mean())
    if "eager" in BESIDES:
        made = maker(-x)
    if "logged" in BESIDES:
        dist.all_reduce(torch.ones(1))
    if "seldom" not in BESIDES or number % 3 == 2:  # which the last mini-batch of an epoch is not
        step(of_maker, critic(made).square().mean())


def step(optimizer, loss):
    optimizer.zero_grad()
    if wrapper is not model:
        wrapper.reducer._rebuild_buckets()
        wrapper.reducer.prepare_for_backward([loss])
    loss.backward()
    optimizer.step()


def train_within(number, x):
    """Make the steps within the wrapper's forward, which then exchanges nothing more."""

    def forward(number, x):
        train(number, x)
        wrapper.require_backward_grad_sync = False

    model.forward = forward
    wrapper(number, x)
    wrapper.require_backward_grad_sync = True


def ahead(reading):
    """Each mini-batch is read before the step with the one before."""
    batch = next(reading)
    for following in reading:
        yield batch
        batch = following
    yield batch


@torch.no_grad()
def evaluate():
    model.eval()
    loss = model[0](torch.ones(1, 4))
    if HOW != "alone":
        dist.all_reduce(loss)
    write()
    model.train()


def write():
    print(*[x.hex() for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)


with open(f"weights.{RANK}", "w") as out:
    for epoch in range(3):
        if HOW != "alone":
            loader.sampler.set_epoch(epoch)
        kept = iter(loader)
        reading = ahead(kept) if HOW == "ahead" else kept
        for number in range(len(loader)):
            (x,) = next(reading)
            train_within(number, x) if HOW == "within" else train(number, x)
            if "left" in BESIDES and number == epoch == 2:
                break
        if "dropped" in BESIDES:  # what it reads, before the ranks meet
            del kept, reading
            dist.barrier()
        if "evaluated" in BESIDES:
            evaluate()
    write()
