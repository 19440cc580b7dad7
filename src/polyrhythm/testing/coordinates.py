"""Data and a model that show afterwards which samples are in the parameters: each sample is a coordinate of its own."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset


class SampleNumbers(Dataset[int]):
    """So many samples that are nothing but their numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class SampleWeights(nn.Module):
    """A weight for each of so many samples: zero until a step with this sample is in the parameters.

    >>> model = SampleWeights(3)
    >>> model(torch.tensor([2])).backward()
    >>> model.weight.grad
    tensor([ 0.,  0., -1.])
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples))

    def forward(self, indices: Tensor) -> Tensor:
        """The loss, whose gradient is -1 for each of these samples."""
        return -self.weight[indices].sum()


class SampleAttempts(nn.Module):
    """Each attempt at a sample of an epoch moves one of its parameters, zero until then, at random.

    With one of its `slots` it is the worker's part of a step, and more if the sample was made twice. The loss is the
    sum over a mini-batch, by `batch_size`.

    >>> model = SampleAttempts(epochs=2, samples=3)
    >>> model(1, torch.tensor([2])).backward()
    >>> model.weight.grad[..., 0]
    tensor([[ 0.,  0.,  0.],
            [ 0.,  0., -1.]])
    """

    def __init__(self, epochs: int, samples: int, slots: int = 1, batch_size: int = 1) -> None:
        super().__init__()
        self._batch_size = batch_size
        self.weight, self._chance = nn.Parameter(torch.zeros(epochs, samples, slots)), torch.Generator()
        self._chance.seed()  # one of its own: a job keeps and restores the others

    def forward(self, epoch: int, indices: Tensor) -> Tensor:
        """The loss, whose gradient is negative for each of these samples."""
        moved = torch.randint(self.weight.shape[-1], indices.shape, generator=self._chance)
        return -self.weight[epoch, indices, moved].sum() / self._batch_size


def train_attempts(
    session: Any,
    model: SampleAttempts,
    optimizer: Optimizer,
    batch_size: int,
    compute_s: float,
    first: int = 0,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train from epoch `first` on in an open session, with steps that take `compute_s`."""
    epochs, samples, _ = model.weight.shape
    for epoch in range(first, epochs):
        for indices in session.loader(SampleNumbers(samples), batch_size=batch_size):
            optimizer.zero_grad()
            time.sleep(compute_s)
            model(epoch, indices).backward()
            optimizer.step()
            after_step()
