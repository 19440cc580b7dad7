"""Data and a model that show afterwards which samples are in the parameters: each sample is a coordinate of its own."""

import torch
from torch import Tensor, nn
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
