"""Averages of a script's replica over the members of a group, in every way in which a `Sync` can ask for one.

The arithmetic is that of `polyrhythm.training.averaging`: every member holds the global parameters and the velocity of
the outer optimizer, and comes to the same result by itself once the contributions are summed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.core import Outer, Sync
from polyrhythm.runtime.collectives.compressed import Gathering, launch_gathering
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import LaunchSum, UnderWay, launch_reduction, launch_sum
from polyrhythm.training.averaging import fragment_bounds, outer_step
from polyrhythm.training.codecs import Compressor
from polyrhythm.training.flat import FlatLayout, local_part, split_buffers, trainable_parameters
from polyrhythm.training.server import shares

PLAIN = Outer()
BLOCK = 1 << 16
"""Elements of several vectors that a core's cache holds at once."""


@dataclass(frozen=True, slots=True)
class ContributionWeight:
    """What one member does in a `Sync`: its weight among the others, and whether it takes over the result."""

    sync: Sync
    share: float
    adopts: bool

    @classmethod
    def of(cls, sync: Sync, worker: int) -> "ContributionWeight":
        """That of `worker`, which may have none of either."""
        weight = dict(zip(sync.workers, shares(len(sync.workers), sync.weights), strict=True))
        return cls(sync, weight.get(worker, 0.0), worker in (sync.adopters or sync.workers))


@dataclass(slots=True)
class AverageInFlight:
    """An exchange under way: when it started, and the sums that arrive in place of the contributions.

    `covers` says that every member contributes or takes over; `contribution` is kept where steps are made meanwhile;
    `first` and `end` bound the elements that are exchanged. What is compressed is gathered, and summed up on arrival.
    """

    weight: ContributionWeight
    started: int
    covers: bool
    first: int
    end: int
    total: Tensor
    contribution: Tensor | None
    counters: list[Tensor]
    reductions: list[UnderWay]
    gathering: Gathering | None = None

    @property
    def due(self) -> int:
        """Step after which the result is taken over."""
        return self.started + self.weight.sync.delay


class Averager:
    """Averages a module: trainable parameters and floating-point buffers, with the same weights.

    Of other buffers, such as batch norm's counter of batches, everyone takes the largest value of all contributors.
    Every member of the group calls the same methods in the same order, never between a forward and its backward.
    Where one raises `GroupError`, because a member is lost, the module is unchanged.

    Args:
        module: not wrapped; its tensors stay where they are.
        compressor: what its differences from what it took over last go through; None sends everything in full.
        launch: sums up what is not compressed.
        parameters: those that are averaged; None are all that are trainable.
        moving: further floating-point tensors of the module, treated as its buffers are.

    Attributes:
        reached: steps since `start` whose contributions everyone has.
        velocity: of the outer optimizer, if it has a momentum.
    """

    def __init__(
        self,
        module: nn.Module,
        compressor: Compressor | None = None,
        launch: LaunchSum = launch_sum,
        parameters: Mapping[str, Tensor] | None = None,
        moving: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._compressor, self._launch = compressor, launch
        self._common = False
        floating, counters = split_buffers(module)
        floating |= moving
        parameters = trainable_parameters(module) if parameters is None else parameters
        self._layout = FlatLayout.of(parameters, floating)
        self._tensors = [*parameters.values(), *floating.values()]
        self._floating, self._counters = list(floating.values()), list(counters.values())
        self._size = sum(local_part(parameter).numel() for parameter in parameters.values())
        self._device = self._tensors[0].device
        self._dtype = self._layout.dtype
        self._global = self._origin = torch.empty(0, device=self._device)
        self._free: list[Tensor] = []
        self._in_flight: list[AverageInFlight] = []
        self.reached = 0
        self.velocity: Tensor | None = None

    @property
    def in_flight(self) -> bool:
        return bool(self._in_flight)

    def start(self) -> None:
        """What the module holds now, equal on all members, are the global parameters from which replicas start."""
        if not self._global.numel():
            self._global = self._take()
        self._origin = self._gather(self._global)
        self._in_flight.clear()
        self.reached = 0
        self._common = True

    def mean(self, generation: Generation, share: float | None = None, step: int = 0) -> None:
        """Give everyone the mean of all replicas, after what is under way; `share` as in `collectives.mean`."""
        self.merge(None)
        whole = Sync(generation.members, "parameters")
        self.combine(
            generation, ContributionWeight(whole, 1.0 / generation.size if share is None else share, adopts=True), step
        )
        self.merge(None)

    def combine(self, generation: Generation, weight: ContributionWeight, step: int) -> None:
        """Start the exchange that a decision after step `step` asks for; `merge` completes it.

        One that moves some of the same elements is completed before.
        """
        first, end = fragment_bounds(self._size, weight.sync.fragment)
        self._complete([t for t in self._in_flight if t.first < end and first < t.end])
        contribution = self._part(first, end)
        gathering = self._gather_compressed(generation, weight.sync, contribution, first, end)
        total = contribution if gathering is not None else self._weighed(weight, contribution, first, end)
        counters = [counter.clone() if weight.share else torch.zeros_like(counter) for counter in self._counters]
        reductions = [self._launch(generation, total, not weight.share)] if gathering is None else []
        reductions += [launch_reduction(generation, as_numbers(counter), ReduceOp.MAX) for counter in counters]
        kept = contribution if weight.sync.delay else None
        covers = {*weight.sync.workers, *(weight.sync.adopters or ())} >= {*generation.members}
        self._in_flight.append(
            AverageInFlight(weight, step, covers, first, end, total, kept, counters, reductions, gathering)
        )

    def merge(self, step: int | None) -> None:
        self._complete([t for t in self._in_flight if step is None or t.due <= step])

    # -- details ---------------------------------------------------------------------------------------------------

    def _take(self) -> Tensor:
        return (
            self._free.pop() if self._free else torch.empty(self._layout.size, device=self._device, dtype=self._dtype)
        )

    def _give_back(self, *vectors: Tensor | None) -> None:
        self._free += [vector for vector in vectors if vector is not None and len(vector) == self._layout.size]

    def _gather(self, out: Tensor) -> Tensor:
        return self._layout.gather(self._tensors, out)

    def _part(self, first: int, end: int) -> Tensor:
        """Elements of the replica, then its buffers."""
        flat = self._gather(self._take())
        if end - first == self._size:
            return flat
        self._give_back(flat)
        return torch.cat([flat[first:end], flat[self._size :]])

    def _weighed(self, weight: ContributionWeight, contribution: Tensor, first: int, end: int) -> Tensor:
        """What is summed up: parameters or their deltas, then buffers, by weight; not in place if that is kept."""
        total = contribution
        if weight.sync.delay:
            total = self._take() if end - first == self._size else torch.empty_like(contribution)
        if not weight.share:
            return total.zero_()
        if weight.sync.what != "deltas":
            return torch.mul(contribution, weight.share, out=total)
        width, origin = end - first, self._origin[first:end]
        for block in blocks(width, total.device):
            torch.sub(contribution[:width][block], origin[block], out=total[:width][block]).mul_(weight.share)
        torch.mul(contribution[width:], weight.share, out=total[width:])
        return total

    def _gather_compressed(
        self, generation: Generation, sync: Sync, contribution: Tensor, first: int, end: int
    ) -> Gathering | None:
        """Send the difference from what all members took over last; None where they took over different things."""
        common, all_adopt = self._common, {*(sync.adopters or sync.workers)} >= {*generation.members}
        self._common = all_adopt and (common or sync.fragment is None)
        if self._compressor is None or not common:
            return None
        width = end - first
        delta, rest = contribution[:width] - self._origin[first:end], contribution[width:]
        delta, rest = delta.float(), rest.float()
        shares_ = [ContributionWeight.of(sync, member).share for member in generation.members]
        return launch_gathering(generation, self._compressor, shares_, delta, rest, first)

    def _sum_up(self, one: AverageInFlight, gathering: Gathering) -> None:
        gathering.wait()
        total, rest = gathering.sums()
        if one.weight.sync.what == "parameters":
            total += self._origin[one.first : one.end]
        if one.contribution is None:
            self._give_back(one.total)
        one.total = torch.cat([total, rest])

    def _complete(self, in_flight: list[AverageInFlight]) -> None:
        for one in in_flight:
            for reduction in one.reductions:
                reduction.wait()
            if one.gathering is not None:
                self._sum_up(one, one.gathering)
            self._in_flight.remove(one)
            self._take_over(one)
            if one.covers:
                self.reached = max(self.reached, one.started + 1)

    def _take_over(self, one: AverageInFlight) -> None:
        result, width = one.total, one.end - one.first
        if one.weight.sync.what == "deltas":
            self._step_outer(one, result[:width])
        if not one.weight.adopts:
            self._replace_global(one, result[:width])
            self._give_back(result, one.contribution)
            return
        self._adopt(one, result)
        for own, largest in zip(self._counters, one.counters, strict=True):
            own.copy_(largest)

    def _step_outer(self, one: AverageInFlight, delta: Tensor) -> None:
        """The global parameters after the outer optimizer's step, in the place of the mean delta."""
        outer = one.weight.sync.outer or PLAIN
        if outer.momentum and self.velocity is None:
            self.velocity = torch.zeros(self._size, device=delta.device, dtype=delta.dtype)
        parameters = self._global[one.first : one.end]
        velocity = self.velocity[one.first : one.end] if self.velocity is not None else None
        for block in blocks(len(delta), delta.device):
            moved = outer_step(parameters[block], delta[block], outer, None if velocity is None else velocity[block])
            delta[block] = moved

    def _adopt(self, one: AverageInFlight, result: Tensor) -> None:
        """Take over the result; parameters move by it less what they contributed, if they have moved on meanwhile."""
        moves = one.contribution is not None
        values = result if one.contribution is None else torch.sub(result, one.contribution, out=one.contribution)
        width = one.end - one.first
        if moves and self._floating:  # exchanges of several fragments at a time would each move the same buffers
            values[width:] = result[width:] - torch.cat([buffer.reshape(-1) for buffer in self._floating])
        if width < self._size:
            self._adopt_part(one, values, moves)
            self._replace_global(one, result[:width])
            self._origin[one.first : one.end] = result[:width]
            return
        (self._layout.add if moves else self._layout.scatter)(values, self._tensors)
        self._give_back(self._global, one.contribution)
        self._global = self._origin = result

    def _adopt_part(self, one: AverageInFlight, values: Tensor, moves: bool) -> None:
        flat, width = self._gather(self._take()), one.end - one.first
        for own, value in (flat[one.first : one.end], values[:width]), (flat[self._size :], values[width:]):
            (own.add_ if moves else own.copy_)(value)
        self._layout.scatter(flat, self._tensors)
        self._give_back(flat)

    def _replace_global(self, one: AverageInFlight, parameters: Tensor) -> None:
        """The global parameters have moved; a replica that does not take them over still started where it did."""
        if not one.weight.adopts and self._origin is self._global:
            self._origin = self._global.clone()
        self._global[one.first : one.end] = parameters


def blocks(width: int, device: torch.device) -> Iterator[slice]:
    """Slices of a vector whose elements stay in a core's cache from one operation to the next; on a GPU one is all.

    >>> list(blocks(100_000, torch.device("cpu"))), list(blocks(100_000, torch.device("cuda")))
    ([slice(0, 65536, None), slice(65536, 100000, None)], [slice(0, 100000, None)])
    """
    size = BLOCK if device.type == "cpu" else max(width, 1)
    for start in range(0, width, size):
        yield slice(start, min(start + size, width))


def as_numbers(counter: Tensor) -> Tensor:
    """Flags as bytes, which can be compared."""
    return counter.view(torch.uint8) if counter.dtype == torch.bool else counter
