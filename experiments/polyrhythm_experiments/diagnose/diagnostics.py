"""What a model's gradients and weights look like at one moment: densities, variance, curvature, distances."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from polyrhythm.training.data.task import Task
from polyrhythm.training.flat import FlatModel

Curve = NDArray[np.float64]

SAMPLE = 4000
"""Most values that a density is estimated from."""
ITERATIONS = 30
TOLERANCE = 1e-3


class GradientSpread(NamedTuple):
    """How the gradients of several mini-batches at one point differ.

    Args:
        sq_norm: mean of their squared L2 norms.
        variance: trace of their covariance, ``m / (m - 1) * (mean ||g_i||^2 - ||mean g_i||^2)``.
        mean: their mean, flat.
    """

    sq_norm: float
    variance: float
    mean: Tensor


def spread(gradients: Sequence[Tensor]) -> GradientSpread:
    """The spread of at least two flat gradients.

    >>> spread([torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])]).variance
    2.0
    """
    stack = torch.stack(list(gradients)).double()
    mean, count = stack.mean(0), len(stack)
    sq_norm = stack.square().sum(1).mean()
    variance = (sq_norm - mean.square().sum()) * count / (count - 1)
    return GradientSpread(float(sq_norm), max(0.0, float(variance)), mean.float())


def density(values: Tensor, grid: Curve) -> Curve:
    """Gaussian kernel density estimate, with Scott's bandwidth ``1.06 * std * m^(-1/5)`` of m values.

    Args:
        values: any shape; of many, evenly spread order statistics stand for all.
        grid: where it is evaluated.

    Returns:
        Densities, as long as `grid`; zeros where all values are equal.

    >>> density(torch.tensor([-1.0, 1.0]), np.array([-1.0, 0.0, 1.0])).round(2).tolist()
    [0.2, 0.23, 0.2]
    """
    chosen = thinned(values).numpy().astype(np.float64)
    width = 1.06 * chosen.std(ddof=1) * len(chosen) ** -0.2 if len(chosen) > 1 else 0.0
    if width == 0.0:
        return np.zeros_like(grid)
    scores = (grid[:, None] - chosen[None, :]) / width
    result: Curve = np.exp(-0.5 * scores**2).mean(axis=1) / (width * np.sqrt(2 * np.pi))
    return result


def thinned(values: Tensor) -> Tensor:
    """Sorted values, at most `SAMPLE` of them, evenly spread over the order."""
    ordered = values.detach().reshape(-1).sort().values
    if len(ordered) <= SAMPLE:
        return ordered
    return ordered[torch.linspace(0, len(ordered) - 1, SAMPLE).long()]


def distance(left: Tensor, right: Tensor) -> float:
    """Wasserstein-1 distance of two equally large sets of values: the mean gap between them, each sorted.

    >>> distance(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 1.0]))
    1.0
    """
    return float((left.reshape(-1).sort().values - right.reshape(-1).sort().values).abs().mean())


def top_eigenvalue(model: FlatModel, task: Task, indices: Tensor, seed: int = 0) -> float:
    """The largest eigenvalue of the Hessian of the mean loss of some training samples, by power iteration.

    Each iteration makes one Hessian-vector product, ``v <- H v / |H v|``, until ``v . H v`` moves by less than a
    thousandth. If the eigenvalue of largest size is negative, a second round on ``H - eigenvalue * I`` finds the
    largest.

    Args:
        model: at its parameters; they and its buffers stay as they are.
        task: data and loss.
        indices: of the samples.
        seed: of the first vector.

    Source: Pearlmutter, *Fast Exact Multiplication by the Hessian*, 1994; used as in Yao et al., *PyHessian*, 2020.
    """
    buffers, counters = model.buffers.clone(), [counter.clone() for counter in model.counters]
    inputs, targets = task.batch(indices)
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
        loss = task.loss(model.module(inputs), targets)
        slope = flat(torch.autograd.grad(loss, model.tensors, create_graph=True, materialize_grads=True))

        def product(vector: Tensor) -> Tensor:
            parts = torch.autograd.grad(slope, model.tensors, vector, retain_graph=True, materialize_grads=True)
            return flat(parts)

        start = torch.randn(len(slope), generator=torch.Generator().manual_seed(seed))
        largest = power_iteration(product, start)
        if largest < 0:
            largest += power_iteration(lambda vector: product(vector) - largest * vector, start)
    model.load(model.parameters, buffers, counters)
    return largest


def power_iteration(product: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """The eigenvalue of largest size of a symmetric operator.

    >>> round(power_iteration(lambda v: torch.tensor([3.0, 1.0]) * v, torch.ones(2)), 3)
    3.0
    """
    vector, value = start / start.norm(), 0.0
    for _ in range(ITERATIONS):
        image = product(vector)
        before, value = value, float(vector @ image)
        size = image.norm()
        if size == 0 or abs(value - before) <= TOLERANCE * abs(value):
            break
        vector = image / size
    return value


def flat(parts: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])
