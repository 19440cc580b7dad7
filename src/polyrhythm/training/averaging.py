"""Averaging replicas: parameters, buffers and, as chosen, the state of their optimizers.

With replicas x_i, weights w_i and global parameters w:

- "parameters": w <- sum(w_i x_i) / sum(w_i);
- "deltas": w <- w + rate * sum(w_i (x_i - w)) / sum(w_i), the same for rate 1;

then every replica that takes part becomes w. Floating-point buffers (batch-norm statistics) are averaged with the same
weights; of other buffers (its counter of batches) each replica takes the largest value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrhythm.training.combine import weighted_mean
from polyrhythm.training.config import StateRule
from polyrhythm.training.optimizer import FlatOptimizer, OptimizerState, StateVector


@dataclass(slots=True)
class Buffers:
    """Buffers of one worker's model: the floating-point ones as a vector, the others one by one."""

    vector: Tensor
    counters: list[Tensor]

    def copy(self) -> "Buffers":
        """An independent copy."""
        return Buffers(self.vector.clone(), [counter.clone() for counter in self.counters])


@dataclass(slots=True)
class Replica:
    """A worker's own parameters and the optimizer that steps them."""

    vector: Tensor
    optimizer: FlatOptimizer


def average_buffers(buffers: Sequence[Buffers], weights: Sequence[float] | None = None) -> Buffers:
    """Mean of the floating-point buffers, maximum of the others; a new value.

    >>> mean = average_buffers([Buffers(torch.tensor([v]), [torch.tensor(int(v))]) for v in (1.0, 3.0)])
    >>> mean.vector, mean.counters
    (tensor([2.]), [tensor(3)])
    """
    counters = [torch.stack(column).amax(0) for column in zip(*(b.counters for b in buffers), strict=True)]
    return Buffers(weighted_mean([b.vector for b in buffers], weights), counters).copy()


def moved(base: Tensor, replicas: Sequence[Tensor], weights: Sequence[float] | None, rate: float = 1.0) -> Tensor:
    """Global parameters `base` after a share `rate` of the way to the replicas' mean; a new vector.

    >>> moved(torch.tensor([0.0]), [torch.tensor([2.0]), torch.tensor([4.0])], None, rate=0.5)
    tensor([1.5000])
    """
    mean = weighted_mean(replicas, weights)
    return mean.clone() if rate == 1 else torch.lerp(base, mean, rate)


def average_states(states: Sequence[OptimizerState], weights: Sequence[float] | None = None) -> OptimizerState:
    """Weighted mean of every vector; scalars, such as step counts, take their maximum. Empty states are left out."""
    pairs = [
        (state, weight)
        for state, weight in zip(states, weights or [1.0] * len(states), strict=True)
        if state.vectors or state.numbers
    ]
    if not pairs:
        return OptimizerState({}, {})
    filled, kept = zip(*pairs, strict=True)
    vectors = {key: average_entry([state.vectors[key] for state in filled], kept) for key in filled[0].vectors}
    columns = {key: zip(*(state.numbers[key] for state in filled), strict=True) for key in filled[0].numbers}
    return OptimizerState(vectors, {key: tuple(max(column) for column in rows) for key, rows in columns.items()})


def average_entry(entries: Sequence[StateVector], weights: Sequence[float]) -> StateVector:
    """One named vector of several states."""
    values, shapes = [entry.values for entry in entries], entries[0].shapes
    if any(shapes) and sum(weights) > 0:
        return StateVector(weighted_mean(values, weights), shapes)
    return StateVector(torch.stack(values).amax(0), shapes)


def align(replicas: Sequence[Replica], vector: Tensor, rule: StateRule, weights: Sequence[float] | None = None) -> None:
    """Set every replica to `vector` and treat the optimizers' state by `rule`."""
    for replica in replicas:
        replica.vector.copy_(vector)
        if rule == "reset":
            replica.optimizer.reset()
    if rule == "average":
        state = average_states([replica.optimizer.state() for replica in replicas], weights)
        for replica in replicas:
            replica.optimizer.load_state(state)
