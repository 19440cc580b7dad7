"""Data sets in memory, the task that is learned on them, and the order in which samples are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

EVALUATION_BATCH = 1000
"""Samples of one forward pass of an evaluation."""
PROBE_BATCH = 128
"""Samples of the probe batch."""


class Quality(NamedTuple):
    """Share of correct predictions, and mean loss."""

    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True)
class Split:
    """Samples and their targets, one a row. Images may be bytes: `Task.batch` scales them."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def first(self, samples: int | None) -> "Split":
        """At most so many samples; all for None."""
        return Split(self.inputs[:samples], self.targets[:samples])


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all but the last dimension of `outputs`: of images, or of every token of a text."""
    return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned: two splits, a model and a loss.

    Args:
        name: for messages.
        train: samples to learn from.
        test: samples to evaluate on.
        build: makes the model from a seed; the same seed gives the same parameters.
        loss: scalar mean loss of a batch from the model's outputs and the targets.
        mean: subtracted from inputs that are bytes; shape that broadcasts against one sample.
        std: these are divided by it.
    """

    name: str
    train: Split
    test: Split
    build: Callable[[int], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    mean: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    std: Tensor = field(default_factory=lambda: torch.tensor(1.0))

    def subset(self, train_samples: int | None, test_samples: int | None) -> "Task":
        """This task on at most so many samples."""
        return replace(self, train=self.train.first(train_samples), test=self.test.first(test_samples))

    def probing(self, seed: int) -> "Task":
        """This task with the probe batch, some of its training samples, in the place of the test split."""
        samples = len(self.train)
        order = np.random.default_rng((seed, samples, PROBE_BATCH)).permutation(samples)
        chosen = torch.from_numpy(order[:PROBE_BATCH])
        return replace(self, test=Split(self.train.inputs[chosen], self.train.targets[chosen]))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these training samples."""
        train = self.train
        return self.prepared(train.inputs.index_select(0, indices)), train.targets.index_select(0, indices)

    def prepared(self, inputs: Tensor) -> Tensor:
        """Inputs as the model takes them: bytes are standardised, all else stays."""
        if inputs.dtype != torch.uint8:
            return inputs
        return inputs.float().sub_(self.mean).div_(self.std)

    def evaluate(self, module: nn.Module) -> Quality:
        """Quality of a model on the test split; a language model's accuracy is that of its next tokens."""
        module.eval()
        with torch.no_grad():
            quality = self.measure(module)
        module.train()
        return quality

    def measure(self, model: Callable[[Tensor], Tensor]) -> Quality:
        """As `evaluate`, of any function from inputs to outputs."""
        parts = [self._measure(model, start) for start in range(0, len(self.test), EVALUATION_BATCH)]
        correct, loss = (sum(column) for column in zip(*parts, strict=True))
        return Quality(correct / self.test.targets.numel(), loss / len(self.test))

    def _measure(self, model: Callable[[Tensor], Tensor], start: int) -> tuple[float, float]:
        rows = slice(start, start + EVALUATION_BATCH)
        targets = self.test.targets[rows]
        outputs = model(self.prepared(self.test.inputs[rows]))
        return float((outputs.argmax(-1) == targets).sum()), float(self.loss(outputs, targets)) * len(targets)


@lru_cache(maxsize=4)
def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The shared permutation of an epoch, the same on every worker and machine.

    >>> sorted(epoch_order(5, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))
