"""Averaging replicas: parameters, buffers and, as chosen, the state of their optimizers.

With global parameters w, and replicas x_i with weights w_i that started their local steps from b_i:

- "parameters": w <- sum(w_i x_i) / sum(w_i);
- "deltas": the outer optimizer steps w with d = sum(w_i (x_i - b_i)) / sum(w_i); at rate 1 without momentum that is
  w <- w + d, and the same as "parameters" if all started from w;

then every adopter becomes w: at once, or after some steps of its own, by which it moves on from w. Of a fragment all
this holds for a slice of the flat vector. Floating-point buffers (batch-norm statistics) are averaged with the same
weights; of other buffers (its counter of batches) each replica takes the largest value. Buffers go over whole, also
with a fragment, and replace the adopter's; optimizer state does as its treatment says, at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyrhythm.core import Outer
from polyrhythm.training.codecs import Compressor
from polyrhythm.training.config import StateTreatment
from polyrhythm.training.optimizer import NUMBERS, FlatOptimizer, OptimizerState, StateVector
from polyrhythm.training.server import GlobalParameters, weighted_mean


@dataclass(slots=True)
class Buffers:
    """Buffers of one worker's model: the floating-point ones as a vector, the others one by one."""

    vector: Tensor
    counters: list[Tensor]

    def copy(self) -> "Buffers":
        """An independent copy."""
        return Buffers(self.vector.clone(), [counter.clone() for counter in self.counters])


@dataclass(slots=True)
class PendingMerge:
    """A result on its way to a replica, and what of the replica went into it.

    Args:
        steps: local steps until it is taken over.
        start: first element of the slice that it is about.
        result: the slice of the global parameters.
        sent: the slice of the replica when the exchange began.
    """

    steps: int
    start: int
    result: Tensor
    sent: Tensor

    @property
    def stop(self) -> int:
        """One past the last element of the slice."""
        return self.start + self.result.numel()


@dataclass(slots=True)
class Replica:
    """A worker's own parameters, the optimizer that steps them, and the parameters from which they started.

    `merges` are results that it has not taken over yet, in the order in which they will come, `arriving` the buffers
    that come with them, each with the local steps until then.
    """

    vector: Tensor
    optimizer: FlatOptimizer
    base: Tensor
    merges: list[PendingMerge] = field(default_factory=list)
    arriving: list[tuple[int, Buffers]] = field(default_factory=list)
    compressor: Compressor | None = None
    """What its differences from the base go through when they are sent."""

    @classmethod
    def of(cls, server: GlobalParameters) -> "Replica":
        """A copy of the global parameters and of their optimizer, its state included."""
        vector = server.vector.clone()
        replica = cls(vector, server.optimizer.on(vector), base=server.vector.clone())
        replica.optimizer.load_state(server.optimizer.state())
        return replica

    def parameters(self, start: int, stop: int) -> Tensor:
        """Its contribution of these elements to a mean of parameters, as it arrives."""
        if self.compressor is None:
            return self.vector[start:stop]
        return self.base[start:stop] + self.delta(start, stop)

    def delta(self, start: int, stop: int) -> Tensor:
        """Its contribution of these elements to a mean of deltas, as it arrives."""
        delta = self.vector[start:stop] - self.base[start:stop]
        return delta if self.compressor is None else self.compressor(delta, start)

    def step(self, gradient: Tensor, lr_scale: float = 1.0, momentum: float | None = None) -> None:
        """One local step, as `FlatOptimizer.step`; then results that are due are taken over."""
        self.optimizer.step(gradient, lr_scale, momentum)
        for merge in self.merges:
            merge.steps -= 1
        self.settle(due=True)

    def stepped(self, gradient: Tensor, lr_scale: float = 1.0, momentum: float | None = None) -> Tensor:
        """The parameters as a step would leave them, which stay as they are."""
        vector = self.vector.clone()
        optimizer = self.optimizer.on(vector)
        optimizer.load_state(self.optimizer.state())
        optimizer.step(gradient.clone(), lr_scale, momentum)
        return vector

    def receive(self, result: Tensor, start: int = 0, delay: int = 0) -> None:
        """Take over a slice of the global parameters, now or after so many local steps."""
        if delay:
            sent = self.vector[start : start + result.numel()].clone()
            self.merges.append(PendingMerge(delay, start, result, sent))
        else:
            self.vector[start : start + result.numel()].copy_(result)
            self._start_from(result, start)

    def expect(self, buffers: Buffers, delay: int) -> Buffers | None:
        """The buffers that it goes on with now; None if these come after so many local steps."""
        if not delay:
            return buffers.copy()
        self.arriving.append((delay, buffers))
        return None

    def arrived(self) -> Buffers | None:
        """Buffers that have come, now that one more step is made; None if none have."""
        due = [buffers for steps, buffers in self.arriving if steps <= 1]
        self.arriving = [(steps - 1, buffers) for steps, buffers in self.arriving if steps > 1]
        return due[-1].copy() if due else None

    def settle(self, start: int = 0, stop: int | None = None, due: bool = False) -> None:
        """Take over the results for elements `start` to `stop` now, or of those only what is due."""
        stop = self.vector.numel() if stop is None else stop
        left = []
        for merge in self.merges:
            if merge.stop <= start or stop <= merge.start or (due and merge.steps > 0):
                left.append(merge)
                continue
            self.vector[merge.start : merge.stop].add_(merge.result).sub_(merge.sent)
            self._start_from(merge.result, merge.start)
        self.merges = left

    def _start_from(self, result: Tensor, start: int) -> None:
        """The next delta of this slice counts from here; replicas share what they start from, so nobody changes it."""
        stop = start + result.numel()
        whole = result.numel() == self.base.numel()
        self.base = result if whole else torch.cat([self.base[:start], result, self.base[stop:]])


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
    vectors = {key: average_entry(key, filled, kept) for key in filled[0].vectors}
    columns = {key: zip(*(state.numbers[key] for state in filled), strict=True) for key in filled[0].numbers}
    return OptimizerState(vectors, {key: tuple(max(column) for column in rows) for key, rows in columns.items()})


def average_entry(key: str, states: Sequence[OptimizerState], weights: Sequence[float]) -> StateVector:
    """One named vector of several states: the mean, or the largest of what is a number of each parameter."""
    entries, others = [state.vectors[key] for state in states], states[0].vectors.values()
    values, shapes = [entry.values for entry in entries], entries[0].shapes
    counts = not any(shapes) and (key in NUMBERS or any(any(other.shapes) for other in others))
    if not counts and sum(weights) > 0:
        return StateVector(weighted_mean(values, weights), shapes)
    return StateVector(torch.stack(values).amax(0), shapes)


def average(
    server: GlobalParameters,
    replicas: Sequence[Replica],
    weights: Sequence[float] | None = None,
    *,
    outer: Outer | None = None,
    adopters: Sequence[Replica] | None = None,
    fragment: tuple[int, int] | None = None,
    delay: int = 0,
    state: StateTreatment = "keep",
) -> None:
    """Move the global parameters to the mean of the replicas, and replicas to the global parameters.

    Results that are still on their way for the same elements are taken over before.

    Args:
        server: holds the global parameters, and the velocity of the outer optimizer.
        replicas: those that contribute, at least one.
        weights: theirs; None is uniform.
        outer: how their mean delta is applied; None takes the mean of their parameters instead.
        adopters: those that take over the result; None are `replicas`.
        fragment: (index, count), the part of the parameters that is exchanged; None is all.
        delay: local steps of each adopter after which it takes over the result.
        state: what becomes of the state of the adopters' optimizers.
    """
    adopters = replicas if adopters is None else adopters
    start, stop = fragment_bounds(server.vector.numel(), fragment)
    for replica in (*replicas, *adopters):
        replica.settle(start, stop)
    server.assign(combined(server, replicas, weights, outer, start, stop), start)
    result = server.vector[start:stop].clone()
    for replica in adopters:
        replica.receive(result, start, delay)
    settle_states(
        [replica.optimizer for replica in adopters], [replica.optimizer for replica in replicas], weights, state
    )


def combined(
    server: GlobalParameters,
    replicas: Sequence[Replica],
    weights: Sequence[float] | None,
    outer: Outer | None,
    start: int,
    stop: int,
) -> Tensor:
    """What elements `start` to `stop` of the global parameters become."""
    if outer is None:
        return weighted_mean([replica.parameters(start, stop) for replica in replicas], weights)
    deltas = [replica.delta(start, stop) for replica in replicas]
    velocity = server.velocity[start:stop] if outer.momentum else None
    return outer_step(server.vector[start:stop], weighted_mean(deltas, weights), outer, velocity)


def settle_states(
    adopters: Sequence[FlatOptimizer],
    contributors: Sequence[FlatOptimizer],
    weights: Sequence[float] | None,
    treatment: StateTreatment,
) -> None:
    """Treat the state of the optimizers of replicas that took over an average."""
    if treatment == "keep":
        return
    mean = (
        average_states([optimizer.state() for optimizer in contributors], weights) if treatment == "average" else None
    )
    for optimizer in adopters:
        if mean is None:
            optimizer.reset()
        else:
            optimizer.load_state(mean)
