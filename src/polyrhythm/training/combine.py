"""Weighted means of flat vectors: the one way in which contributions are combined."""

import math
from collections.abc import Sequence

from torch import Tensor

from polyrhythm.errors import PolicyError


def shares(count: int, weights: Sequence[float] | None) -> list[float]:
    """Weights that sum to one; None is uniform.

    >>> shares(4, None), shares(2, (3.0, 1.0))
    ([0.25, 0.25, 0.25, 0.25], [0.75, 0.25])

    Raises:
        PolicyError: if nothing has weight.
    """
    if weights is None:
        return [1.0 / count] * count
    assert len(weights) == count, f"{len(weights)} weights for {count} vectors"
    total = sum(weights)
    if not 0 < total < math.inf:
        raise PolicyError(f"weights {list(weights)} sum to {total}; a Sync needs a positive, finite sum")
    return [weight / total for weight in weights]


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """sum(w_i v_i) / sum(w_i), summed in the order given; a single vector is returned itself.

    >>> import torch
    >>> weighted_mean([torch.tensor([1.0]), torch.tensor([4.0])], [2.0, 1.0])
    tensor([2.])
    """
    parts = shares(len(vectors), weights)
    if len(vectors) == 1:
        return vectors[0]
    first, *others = zip(vectors, parts, strict=True)
    mean = first[0] * first[1]
    for vector, share in others:
        mean.add_(vector, alpha=share)
    return mean
