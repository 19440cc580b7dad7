"""Averaging replicas: parameters, buffers and, as chosen, the state of their optimizers.

With global parameters w, and replicas x_i with weights w_i that started their local steps from b_i:

- "parameters": w <- sum(w_i x_i) / sum(w_i);
- "deltas": w <- w + rate * sum(w_i (x_i - b_i)) / sum(w_i), the same if all started from w and the rate is 1;

then every replica that takes part becomes w. Floating-point buffers (batch-norm statistics) are averaged with the same
weights; of other buffers (its counter of batches) each replica takes the largest value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrhythm.core import Outer
from polyrhythm.training.combine import weighted_mean
from polyrhythm.training.config import StateRule
from polyrhythm.training.optimizer import FlatOptimizer, OptimizerState, StateVector
from polyrhythm.training.server import GlobalParameters


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
    """A worker's own parameters, the optimizer that steps them, and the parameters from which they started."""

    vector: Tensor
    optimizer: FlatOptimizer
    base: Tensor

    @classmethod
    def of(cls, server: GlobalParameters) -> "Replica":
        """A copy of the global parameters and of their optimizer, its state included."""
        vector = server.vector.clone()
        replica = cls(vector, server.optimizer.on(vector), base=server.vector.clone())
        replica.optimizer.load_state(server.optimizer.state())
        return replica


def outer_step(parameters: Tensor, delta: Tensor, outer: Outer, velocity: Tensor | None = None) -> Tensor:
    """What the outer optimizer makes of the global parameters; a new vector.

    Args:
        parameters: global ones, or any slice of them.
        delta: mean delta of the replicas, of the same slice.
        outer: see `Outer`.
        velocity: of the same slice, moved in place; only a momentum needs it.

    >>> outer_step(torch.tensor([1.0]), torch.tensor([2.0]), Outer(lr=0.5))
    tensor([2.])
    """
    if not outer.momentum or velocity is None:
        return parameters.add(delta, alpha=outer.lr)
    velocity.mul_(outer.momentum).add_(delta)
    direction = delta.add(velocity, alpha=outer.momentum) if outer.nesterov else velocity
    return parameters.add(direction, alpha=outer.lr)


def fragment_bounds(size: int, fragment: tuple[int, int] | None) -> tuple[int, int]:
    """First and last (exclusive) element of part (index, count) of a vector; None is all.

    >>> [fragment_bounds(10, (i, 3)) for i in range(3)], fragment_bounds(10, None)
    ([(0, 3), (3, 6), (6, 10)], (0, 10))
    """
    index, count = fragment or (0, 1)
    return size * index // count, size * (index + 1) // count


def average_buffers(buffers: Sequence[Buffers], weights: Sequence[float] | None = None) -> Buffers:
    """Mean of the floating-point buffers, maximum of the others; a new value.

    >>> mean = average_buffers([Buffers(torch.tensor([v]), [torch.tensor(int(v))]) for v in (1.0, 3.0)])
    >>> mean.vector, mean.counters
    (tensor([2.]), [tensor(3)])
    """
    counters = [torch.stack(column).amax(0) for column in zip(*(b.counters for b in buffers), strict=True)]
    return Buffers(weighted_mean([b.vector for b in buffers], weights), counters).copy()


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


def average(
    server: GlobalParameters,
    replicas: Sequence[Replica],
    weights: Sequence[float] | None = None,
    *,
    delta_rate: float | None = None,
    state: StateRule = "keep",
) -> None:
    """Move the global parameters to the mean of the replicas, and the replicas to the global parameters.

    Args:
        server: holds the global parameters.
        replicas: those that take part, at least one.
        weights: theirs; None is uniform.
        delta_rate: rate at which their mean delta is applied; None takes the mean of their parameters instead.
        state: what becomes of the state of their optimizers.
    """
    if delta_rate is None:
        server.assign(weighted_mean([replica.vector for replica in replicas], weights))
    else:
        deltas = [replica.vector - replica.base for replica in replicas]
        server.assign(server.vector.add(weighted_mean(deltas, weights), alpha=delta_rate))
    base = server.vector.clone()
    for replica in replicas:
        replica.base = base
        replica.vector.copy_(base)
    settle_states([replica.optimizer for replica in replicas], weights, state)


def settle_states(optimizers: Sequence[FlatOptimizer], weights: Sequence[float] | None, rule: StateRule) -> None:
    """Treat the state of the optimizers of replicas that were averaged."""
    if rule == "keep":
        return
    if rule == "reset":
        for optimizer in optimizers:
            optimizer.reset()
        return
    mean = average_states([optimizer.state() for optimizer in optimizers], weights)
    for optimizer in optimizers:
        optimizer.load_state(mean)
