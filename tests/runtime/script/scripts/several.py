# mypy: ignore-errors
"""Several optimizers: a GAN with two exchanges a step, one with a critic that steps more often, two for one model."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WHAT = sys.argv[1]
RANK = int(os.environ.get("RANK", 0))
ALONE = "alone" in sys.argv
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)) + 1)
if ALONE:
    loader = DataLoader(data, 8)
    wrap = lambda module: module  # noqa: E731
else:
    dist.init_process_group("gloo")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
    wrap = DistributedDataParallel
torch.manual_seed(0)


def gan(every):
    middle = [nn.BatchNorm1d(4)] if WHAT == "buffers" else []
    critic, maker = wrap(nn.Linear(4, 1)), wrap(nn.Sequential(nn.Linear(4, 4), *middle, nn.Tanh(), nn.Linear(4, 4)))
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01, betas=(0.5, 0.99))
    for _ in range(3):
        for i, (x,) in enumerate(loader):
            made = maker(-x)
            of_critic.zero_grad()
            critic(x).square().mean().backward()
            (critic(made.detach()) - 1).square().mean().backward()
            of_critic.step()
            if i % every == every - 1:
                of_maker.zero_grad()
                critic(made).square().mean().backward()  # which leaves gradients in the critic, too
                of_maker.step()
    return [critic, maker]


def two_scalers():
    """Of which the second finds infinities now and then, on one of the ranks."""
    critic, maker = wrap(nn.Linear(4, 1)), wrap(nn.Linear(4, 4))
    of_critic, of_maker = (torch.optim.Adam(each.parameters(), lr=0.02) for each in (critic, maker))
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (64.0, 1024.0)]
    for _ in range(3):
        for i, (x,) in enumerate(loader):
            made, scale = maker(-x), float("inf") if RANK == i == 1 else 1.0
            of = {of_critic: lambda made=made, x=x: (critic(x) - critic(made.detach())).square().mean()}
            of[of_maker] = lambda made=made, scale=scale: critic(made).mean() * scale
            for (optimizer, loss), scaler in zip(of.items(), scalers, strict=True):
                optimizer.zero_grad()
                scaler.scale(loss()).backward()
                scaler.step(optimizer)
                scaler.update()
    assert [scaler.get_scale() for scaler in scalers] == [64.0, 128.0], [scaler.get_scale() for scaler in scalers]
    return [critic, maker]


def eager_critic():
    """It steps three times with each mini-batch, and only the first one is new."""
    critic, maker = wrap(nn.Linear(4, 1)), wrap(nn.Linear(4, 4))
    of_critic, of_maker = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (critic, maker))
    for _ in range(3):
        for (x,) in loader:
            for _ in range(3):
                of_critic.zero_grad()
                (critic(x) - critic(maker(-x).detach())).square().mean().backward()
                of_critic.step()
            of_maker.zero_grad()
            critic(maker(-x)).square().mean().backward()
            of_maker.step()
    return [critic, maker]


def two_kinds():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 1))
    muon = torch.optim.Muon([model[0].weight], lr=0.05)
    adam = torch.optim.AdamW(model[2].parameters(), lr=0.02)
    model = wrap(model)
    for _ in range(3):
        for (x,) in loader:
            model(x).square().mean().backward()
            for optimizer in (muon, adam):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return [model]


ways = {"scalers": two_scalers, "eager": eager_critic, "kinds": two_kinds, "critic": lambda: gan(2)}
models = {"gan": lambda: gan(1), "buffers": lambda: gan(1), **ways}[WHAT]()
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[f"{x:.9g}" for m in models for p in m.parameters() for x in p.detach().flatten().tolist()], file=out)
