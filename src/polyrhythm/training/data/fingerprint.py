"""What tells one data set from another without asking it for a sample.

A data set may draw random numbers whenever it is asked (augmentation), and take its time. So nothing of the script's is
called: only the tensors that a `TensorDataset` holds and the indices of a `Subset` are looked at. Subclasses may do
anything, and of them, as of all other data sets, only the length is known.
"""

import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

TOLERANCE = 1e-4
"""Relative; hosts with other processors round otherwise what they scale or normalise."""


def probes(samples: int) -> tuple[int, ...]:
    """Samples that are looked at.

    >>> probes(10), probes(2)
    ((0, 3, 6, 9), (0, 1))
    """
    return tuple(sorted({(samples - 1) * part // 3 for part in range(4)})) if samples else ()


def content_of(dataset: Dataset[Any]) -> tuple[float, ...]:
    """A number for each tensor of each of the `probes`, one sample after the other; none of an unknown data set.

    >>> content_of(TensorDataset(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([0, 1])))
    (3.5, 0.0, 3.0, 1.0)
    """
    rows = [row for index in probes(len(dataset)) for row in rows_of(dataset, index)]  # type: ignore[arg-type]
    return tuple(map(weighted_mean, rows))


def rows_of(dataset: Dataset[Any], index: int) -> list[Tensor]:
    """What a `TensorDataset` has of a sample."""
    inner: Any = dataset
    while type(inner) is Subset:
        inner, index = inner.dataset, int(inner.indices[index])
    tensors = inner.tensors if type(inner) is TensorDataset else ()
    return [tensor[index] for tensor in tensors if is_plain(tensor)]


def is_plain(tensor: Tensor) -> bool:
    """Whether its numbers can be read."""
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"


def weighted_mean(row: Tensor) -> float:
    """Of magnitudes, so that nothing cancels out; weights tell permutations apart."""
    magnitudes = row.detach().abs() if row.is_complex() else row.detach().cpu().double().abs()
    numbers = magnitudes.cpu().double().reshape(-1)
    return float(numbers @ torch.linspace(1, 2, len(numbers), dtype=torch.float64)) / max(1, len(numbers))


def alike(first: float, second: float) -> bool:
    """Whether two numbers of `content_of` may be of the same sample.

    >>> alike(1.0, 1.00001), alike(1.0, 1.001), alike(math.nan, math.nan)
    (True, False, True)
    """
    return math.isclose(first, second, rel_tol=TOLERANCE) or (math.isnan(first) and math.isnan(second))


def selection_of(dataset: Dataset[Any]) -> str:
    """Of a `Subset`, which samples it takes; nothing of others."""
    chosen = []
    while type(dataset) is Subset:
        chosen.append(dataset.indices)
        dataset = dataset.dataset
    return digest(chosen) if chosen else ""


def digest(numbers: Iterable[Any]) -> str:
    """A word for sequences of whole numbers.

    >>> digest([range(3)]), digest([[0, 1], [2]]) == digest([[0, 1, 2]])
    ('4f8c5ccc', True)
    """
    code = 0
    for part in numbers:
        code = zlib.crc32(np.ascontiguousarray(part, np.int64).data, code)
    return f"{code:08x}"
