# mypy: ignore-errors
"""A compiled model, wrapped in every order, or what calls it; the backend counts operations instead of compiling."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import polyrhythm

GRAPHS = []


def counting(graph, inputs):
    GRAPHS.append(sum(node.op == "call_function" for node in graph.graph.nodes))
    return graph.forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.relu(self.stem(x)))


def build(order):
    model = Net()
    if order == "inside":
        return DistributedDataParallel(torch.compile(model, backend=counting))
    if order == "method":
        model.compile(backend=counting)
        return DistributedDataParallel(model)
    if order == "outside":
        return torch.compile(DistributedDataParallel(model), backend=counting)
    if order == "alone":
        return torch.compile(model, backend=counting)
    if order == "alone-method":
        model.compile(backend=counting)
    if order.startswith("alone"):
        return model
    return DistributedDataParallel(model)


class Loop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def loss(self, x, y):
        return (self.model(x) - y).square().mean()

    def step(self):
        self.optimizer.step()

    def whole(self, x, y):
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        self.step()


def within_session(order):
    """Compiled when the session has the model, or `session-not` at all."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        loop = Loop(model, optimizer)
        if order == "session-whole":
            loop.whole = torch.compile(loop.whole, backend=counting)
        data = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
        for x, y in session.loader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=8):
            loop.whole(x, y)
    Path(f"end.{session.rank}").write_text(f"{[*map(torch.Tensor.tolist, model.parameters())]}\n")


def main(order):
    if order.startswith("session"):
        within_session(order)
        return
    torch.manual_seed(0)
    if not order.startswith("alone"):
        dist.init_process_group("gloo")
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = None if order.startswith("alone") else DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    model = build(order)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer)
    if (name := order.removeprefix("alone-")) in ("loss", "whole"):
        setattr(loop, name, torch.compile(getattr(loop, name), backend=counting))
    for _ in range(2):
        for x, y in loader:
            loop.whole(x, y)
        with torch.no_grad():
            model(x)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    rank = dist.get_rank() if not order.startswith("alone") else 0
    Path(f"end.{rank}").write_text(f"{sorted(GRAPHS)}\n{weights.tolist()}\n")
    if not order.startswith("alone"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
