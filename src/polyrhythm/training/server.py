"""The global parameters, or one shard of them, how gradients change them, and the mean in which they are combined."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyrhythm.errors import PolicyError
from polyrhythm.training.compensation import Compensation, parse_compensation
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.optimizer import FlatOptimizer, configured_optimizer

PLAIN = Compensation()


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


class Push(NamedTuple):
    """One gradient as it arrives.

    Args:
        gradient: flat, of the shard's shape; it may be changed when it is applied.
        backup: the parameters that its worker read; only some compensations need it.
        staleness: updates between that read and now.
        weight: its weight among the gradients of the same update.
    """

    gradient: Tensor
    backup: Tensor | None = None
    staleness: int = 0
    weight: float = 1.0


class GlobalParameters:
    """A flat vector, the optimizer that steps it, and a version that counts its changes.

    It knows nothing of models, so a server may hold any slice of one.

    Args:
        vector: the parameters; updates change it in place.
        optimizer: steps `vector`.
        compensation: what is done about staleness.

    Example:
        >>> from polyrhythm.training.flat import FlatLayout
        >>> vector = torch.ones(2)
        >>> sgd = FlatOptimizer(torch.optim.SGD, {"lr": 0.1}, vector, FlatLayout.of({"w": vector}))
        >>> server = GlobalParameters(vector, sgd)
        >>> server.apply([Push(torch.tensor([1.0, 0.0])), Push(torch.tensor([0.0, 1.0]))], lr_scale=2)
        >>> server.vector, server.version
        (tensor([0.9000, 0.9000]), 1)
    """

    def __init__(self, vector: Tensor, optimizer: FlatOptimizer, compensation: Compensation = PLAIN) -> None:
        self.vector = vector
        self.optimizer = optimizer
        self.compensation = compensation
        self.version = 0
        self._mean_square = torch.zeros_like(vector) if compensation.needs_mean_square else None
        self._velocity: Tensor | None = None
        self._snapshot: Tensor | None = None
        self._spare: list[Tensor] = []
        self._readers: Counter[int] = Counter()

    def read(self) -> Tensor:
        """A copy of the newest parameters that nobody changes; readers of one version share it."""
        if self._snapshot is None:
            copy = self._spare.pop() if self._spare else torch.empty_like(self.vector)
            self._snapshot = copy.copy_(self.vector)
        self._readers[self.version] += 1
        return self._snapshot

    def give_back(self, read: Iterable[tuple[Tensor, int]]) -> None:
        """Readers are done with these copies, each of a version.

        After its last reader a later `read` may overwrite a copy, which is faster than a new one.
        """
        for snapshot, version in read:
            self._readers[version] -= 1
            if not self._readers[version]:
                del self._readers[version]
                if snapshot is not self._snapshot:
                    self._spare.append(snapshot)

    def apply(self, pushes: Sequence[Push], lr_scale: float = 1.0, momentum: float | None = None) -> None:
        """One optimizer step with the weighted mean of some gradients.

        With weights w_i and the compensation's rate factors f_i, the gradient is ``sum(w_i f_i g_i) / sum(w_i f_i)``
        and the rate is multiplied by ``sum(w_i f_i) / sum(w_i)``.

        Args:
            pushes: at least one.
            lr_scale: further factor on the optimizer's rate, for this step.
            momentum: momentum of this step; None is the optimizer's own.
        """
        self._outdate()
        gradient, factor = self._mean(pushes)
        self.optimizer.step(gradient, lr_scale * factor, momentum)

    @property
    def velocity(self) -> Tensor:
        """Velocity of the outer optimizer that averages of replicas go through; zero at first."""
        if self._velocity is None:
            self._velocity = torch.zeros_like(self.vector)
        return self._velocity

    def assign(self, vector: Tensor, start: int = 0) -> None:
        """Set the parameters, or a slice of them from element `start` on, as after an average of replicas."""
        self.vector[start : start + vector.numel()].copy_(vector)
        self._outdate()

    def _mean(self, pushes: Sequence[Push]) -> tuple[Tensor, float]:
        """Gradient, and factor on the rate; of a single push, which is the usual case, directly."""
        if len(pushes) == 1 and 0 < pushes[0].weight < math.inf:
            (push,) = pushes
            scales = self.compensation.scales_rate
            factor = push.weight * self.compensation.lr_scale(push.staleness) / push.weight if scales else 1.0
            return self._corrected(push), factor
        corrected, weights = [self._corrected(push) for push in pushes], [push.weight for push in pushes]
        if not self.compensation.scales_rate:
            return weighted_mean(corrected, weights), 1.0
        scaled = [push.weight * self.compensation.lr_scale(push.staleness) for push in pushes]
        return weighted_mean(corrected, scaled), sum(scaled) / sum(weights)

    def _corrected(self, push: Push) -> Tensor:
        if not self.compensation.needs_backup:
            return push.gradient
        assert push.backup is not None, f"{self.compensation.name} needs the parameters that the worker read"
        return self.compensation.correct(push.gradient, self.vector - push.backup, self._mean_square)

    def _outdate(self) -> None:
        """What readers share is an older version from now on."""
        self.version += 1
        self._snapshot = None


def server_of(config: TrainingConfig, model: FlatModel) -> GlobalParameters:
    """The global parameters of a job that starts from `model`; they are a copy."""
    vector = model.parameters.clone()
    optimizer = configured_optimizer(config, vector, model.layout)
    return GlobalParameters(vector, optimizer, parse_compensation(config.compensation))
