# mypy: ignore-errors
"""Looks at its wrapper and its class, trains it, or one that it has read, and saves it as a whole."""

import copy
import hashlib
import os
import pickle
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND, RANK = sys.argv[1], os.environ["RANK"]


class Forwarding(DistributedDataParallel):
    """Has what its module has."""

    def __init__(self, module, name, **options):
        self.name = name
        super().__init__(module, **options)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Calling(DistributedDataParallel):
    def forward(self, x):
        return self.module(x)


class Preparing(DistributedDataParallel):
    def train_step(self, x):
        self.reducer.prepare_for_forward()
        return self.module(x)


class Net(nn.Sequential):
    kind = "net"


def is_parallel(model):
    return type(model) in (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)


def look(model):
    kind = type(model)
    yield is_parallel(model), kind.__name__, kind.__module__, kind.__mro__, model.__class__ is kind
    yield isinstance(model, DistributedDataParallel), isinstance(model, nn.parallel.distributed.DistributedDataParallel)
    yield list((model.module if is_parallel(model) else model).state_dict())
    yield model.require_backward_grad_sync, model.static_graph, model.broadcast_buffers, model.dim
    yield repr(model), hasattr(model, "missing"), getattr(model, "kind", ""), getattr(model, "name", "")
    with model.no_sync():
        yield model.require_backward_grad_sync
    copied = copy.deepcopy(model)
    yield type(copied) is kind, list(copied.state_dict()), copied.require_backward_grad_sync
    yield type(copy.deepcopy(copied)) is kind
    yield type(pickle.loads(pickle.dumps(model))) is kind  # noqa: S301
    dist.barrier()


def wrap(net):
    if KIND == "read":
        return torch.load(f"{sys.argv[2]}.{RANK}", weights_only=False)
    if KIND in ("forwarding", "forwarding group"):
        group = dist.new_group([0]) if "group" in KIND else None
        return Forwarding(net, "mine", process_group=group)
    kind = {"calling": Calling, "preparing": Preparing}.get(KIND, DistributedDataParallel)
    return kind(net)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = wrap(Net(nn.Linear(10, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2)))
data = TensorDataset(torch.randn(96, 10), torch.randint(0, 2, (96,)))
loader = DataLoader(data, 8, sampler=DistributedSampler(data, seed=3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with open(f"end.{RANK}", "w", encoding="utf-8", opener=os.open) as out:
    print(*look(model), sep="\n", file=out)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(*look(model), sep="\n", file=out)
    print(*(hashlib.sha1(p.detach().numpy().tobytes()).hexdigest() for p in model.module.parameters()), file=out)
torch.save(model, f"whole.{RANK}")
dist.destroy_process_group()
