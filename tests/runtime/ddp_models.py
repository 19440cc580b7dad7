"""Small models and steps for tests that run DistributedDataParallel in worker processes."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 0.005
"""Small enough for several buckets."""


def network(batch_norm: bool = True, width: int = 64) -> nn.Module:
    """Three linear layers in at least two buckets, the same on every rank."""
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(width)] if batch_norm else []
    return nn.Sequential(
        nn.Linear(20, width), *norm, nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5), nn.Flatten()
    )


class Branches(nn.Module):
    """Uses one of two layers, as its input says: unused parameters differ between ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.left, self.right = nn.Linear(20, 64), nn.Linear(64, 5), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        """The right layer if the first input is positive."""
        branch = self.right if x[0, 0] > 0 else self.left
        return torch.as_tensor(branch(torch.relu(self.trunk(x))))


class Trainer:
    """A model under DistributedDataParallel, momentum SGD, and a stream of batches of its own."""

    def __init__(self, group: dist.ProcessGroup | None, seed: int, model: nn.Module | None = None, **options: Any):
        self.model = model or network()
        self.ddp = DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=BUCKET_MB, **options)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1, momentum=0.9)
        self.stream = torch.Generator().manual_seed(seed)

    def batch(self) -> Tensor:
        """The next batch."""
        return torch.randn(8, 20, generator=self.stream)

    def backward(self) -> None:
        """A forward and a backward pass."""
        self.ddp(self.batch()).square().mean().backward()

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        """Several."""
        for _ in range(count):
            self.step()

    def values(self) -> list[Tensor]:
        """Copies of parameters and buffers."""
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *self.model.buffers())]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    """Equal bits."""
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def digest(tensors: Iterable[Tensor]) -> str:
    """Equal where all bits are."""
    return sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
