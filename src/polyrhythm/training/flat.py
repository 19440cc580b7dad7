"""Flat vectors over any module: all trainable parameters in one, all floating-point buffers in another.

Two ways to use them:

- `FlatModel` re-points every parameter and buffer to a view of the vectors, so that reading or writing the whole model
  is one copy. For modules that we own. `module.double()` and ``load_state_dict(assign=True)`` undo it, and a
  channels-last layout is lost.
- `FlatLayout.gather` and `FlatLayout.scatter` copy, for scripts whose tensors must stay where they are.

On one device. A vector is float64 if a tensor is, and float32 otherwise: float16 and bfloat16 are rounded when they are
copied back. Frozen parameters are left out; a parameter that is shared by several modules (tied) is
there once. Parameters of one group stand side by side, so a parameter group is a slice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from polyrhythm.errors import UsageError

Named = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Segment:
    """Where one tensor stands in a flat vector: elements `start` to `stop` (exclusive)."""

    name: str
    shape: torch.Size
    start: int
    stop: int

    def view(self, flat: Tensor) -> Tensor:
        """This tensor inside `flat`."""
        return flat[self.start : self.stop].view(self.shape)


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Places of named tensors in one vector of `size` elements of `dtype`, in groups that stand side by side."""

    groups: tuple[tuple[Segment, ...], ...]
    size: int
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, *groups: Named) -> "FlatLayout":
        """Layout of the tensors of each group, in their order.

        Raises:
            UsageError: for a tensor of no real floating-point type, or tensors on several devices.

        Example:
            >>> layout = FlatLayout.of({"w": torch.zeros(2, 3)}, {"b": torch.zeros(2)})
            >>> [(s.name, s.start, s.stop) for s in layout.segments], layout.size
            ([('w', 0, 6), ('b', 6, 8)], 8)
        """
        named = [item for group in groups for item in group.items()]
        check_tensors(named)
        named = [(name, local_part(tensor)) for name, tensor in named]
        stops = accumulate(tensor.numel() for _, tensor in named)
        segments = iter(
            [Segment(name, t.shape, stop - t.numel(), stop) for (name, t), stop in zip(named, stops, strict=True)]
        )
        dtype = torch.float64 if any(t.dtype == torch.float64 for _, t in named) else torch.float32
        places = tuple(tuple(next(segments) for _ in group) for group in groups)
        return cls(places, sum(tensor.numel() for _, tensor in named), dtype)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments in order."""
        return tuple(chain.from_iterable(self.groups))

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each tensor inside `flat`, in order."""
        return [segment.view(flat) for segment in self.segments]

    def gather(self, tensors: Sequence[Tensor], out: Tensor) -> Tensor:
        """Copy tensors, in the layout's order, into the vector `out`; returns it."""
        with torch.no_grad():
            return torch.cat([local_part(t).reshape(-1) for t in tensors], out=out) if tensors else out

    def gather_gradients(self, parameters: Sequence[Tensor], out: Tensor) -> Tensor:
        """Copy every ``.grad`` into `out`; zeros where a parameter got none."""
        return self.gather([gradient_of(parameter) for parameter in parameters], out)

    def scatter(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the vector `flat` into tensors, in the layout's order. Never between a forward and its backward."""
        with torch.no_grad():
            for tensor, view in zip(tensors, self.views(flat), strict=True):
                local_part(tensor).copy_(view)

    def add(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Add the vector `flat` to tensors, in the layout's order. Never between a forward and its backward."""
        with torch.no_grad():
            for tensor, view in zip(tensors, self.views(flat), strict=True):
                local_part(tensor).add_(view)


def check_tensors(named: Iterable[tuple[str, Tensor]], only: torch.dtype | None = None) -> None:
    """All floating-point, on request of one type, and on one device."""
    devices: dict[torch.device, str] = {}
    for name, tensor in named:
        if not tensor.is_floating_point() or (only is not None and tensor.dtype != only):
            raise UsageError(f"{name} is {tensor.dtype}; flat vectors hold torch.float32: convert the model first")
        devices.setdefault(tensor.device, name)
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise UsageError(f"parameters and buffers must be on one device but got {places}")


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that learn, by name, each once.

    Raises:
        UsageError: if there are none.
    """
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not found:
        raise UsageError(f"model {type(module).__name__} has no parameter with requires_grad=True")
    return found


def split_buffers(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Floating-point buffers (batch-norm statistics) and the others (its counter), by name, each once."""
    buffers = dict(module.named_buffers())
    floating = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
    return floating, {name: buffer for name, buffer in buffers.items() if name not in floating}


class FlatModel:
    """A module whose trainable parameters and floating-point buffers are views of two flat vectors.

    Args:
        module: the model; its tensors are re-pointed, their values stay.
        groups: names of the parameters of each optimizer group; None is one group of all.

    Attributes:
        parameters: vector of all trainable parameters, shape (layout.size,).
        buffers: vector of all floating-point buffers.
        counters: the other buffers, in order of their names; they are not part of a vector.

    Example:
        >>> model = FlatModel(nn.Linear(2, 1))
        >>> _ = model.parameters.fill_(1.0)
        >>> model.module(torch.tensor([2.0, 3.0])).item()
        6.0
    """

    def __init__(self, module: nn.Module, groups: Sequence[Sequence[str]] | None = None) -> None:
        named = trainable_parameters(module)
        floating, counters = split_buffers(module)
        self.module = module
        self.layout = FlatLayout.of(*grouped(named, groups))
        self.buffer_layout = FlatLayout.of(floating)
        check_tensors([*named.items(), *floating.items()], torch.float32)
        self.tensors = [named[segment.name] for segment in self.layout.segments]
        self.parameters = repoint(self.layout, self.tensors)
        self.buffers = repoint(self.buffer_layout, list(floating.values()))
        self.counters = list(counters.values())

    def load(self, parameters: Tensor, buffers: Tensor, counters: Sequence[Tensor]) -> None:
        """Copy in parameters and buffers. Never between a forward and its backward."""
        self.parameters.copy_(parameters)
        if self.buffers.numel():
            self.buffers.copy_(buffers)
        for own, counter in zip(self.counters, counters, strict=True):
            own.copy_(counter)

    def save_buffers(self, buffers: Tensor, counters: Sequence[Tensor]) -> None:
        """Copy out the buffers, as a forward pass has left them."""
        if self.buffers.numel():
            buffers.copy_(self.buffers)
        for own, counter in zip(self.counters, counters, strict=True):
            counter.copy_(own)

    def gather_gradients(self, out: Tensor) -> Tensor:
        """Copy every ``.grad`` into `out`; zeros where a parameter got none."""
        return self.layout.gather_gradients(self.tensors, out)


def gradient_of(parameter: Tensor) -> Tensor:
    """Dense, of the part that is here; zeros if it has none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(local_part(parameter))
    return gradient.to_dense() if gradient.is_sparse else local_part(gradient)


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, in the same memory: its shard of a DTensor, all of any other."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return cast(Tensor, tensor.to_local())


def part_of(whole: Tensor, part: Tensor) -> Tensor:
    """The tensor that is laid out as `whole`, of which this process has `part`: the reverse of `local_part`."""
    if not hasattr(whole, "to_local"):
        return part
    sharded: Any = whole
    shape = {"shape": whole.shape, "stride": whole.stride()}
    return cast(
        Tensor, type(sharded).from_local(part, sharded.device_mesh, sharded.placements, run_check=False, **shape)
    )


def grouped(named: Mapping[str, Tensor], groups: Sequence[Sequence[str]] | None) -> list[Named]:
    """The parameters of each group; every one is in exactly one."""
    if groups is None:
        return [named]
    chosen = [name for group in groups for name in group]
    wrong = sorted(set(chosen) ^ set(named)) or [name for name in chosen if chosen.count(name) > 1]
    if wrong:
        raise UsageError(f"groups must name every trainable parameter once; see {', '.join(wrong)}")
    return [{name: named[name] for name in group} for group in groups]


def repoint(layout: FlatLayout, tensors: Sequence[Tensor]) -> Tensor:
    """A new vector with the values of `tensors`, which become views of it."""
    device = tensors[0].device if tensors else None
    flat = layout.gather(tensors, torch.empty(layout.size, device=device))
    for tensor, view in zip(tensors, layout.views(flat), strict=True):
        tensor.data = view
    return flat


def uneven_statistics(model: nn.Module) -> str:
    """What to know of a model whose workers have mini-batches of unequal size; empty if nothing.

    >>> uneven_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))).partition(":")[0]
    'shares are unequal, and batch norm (1) takes its statistics from the mini-batch of each worker'
    """
    norms = (name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._NormBase))
    name = next(norms, None)
    if name is None:
        return ""
    return (
        f"shares are unequal, and batch norm ({name}) takes its statistics from the mini-batch of each worker: a small "
        "share has less certain ones, and the buffers are those of the lowest rank; where that matters use group norm "
        "or policy bsp"
    )


def least_share(model: nn.Module) -> int:
    """Samples that a mini-batch of this model must have: batch norm over vectors can make nothing of one.

    Whether other batch norm sees more than one position of a sample is known in its forward pass only.

    >>> least_share(nn.Linear(2, 2)), least_share(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    (1, 2)
    """
    return 2 if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()) else 1


def why_unshareable(model: nn.Module) -> str:
    """Why the mini-batches of this model's workers cannot be unequal; empty if they can.

    >>> why_unshareable(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))
    'SyncBatchNorm 1 mixes the gradients of all before they are weighed; use BatchNorm, or policy bsp'
    """
    mixing = (name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm))
    name = next(mixing, None)
    if name is None:
        return ""
    return f"SyncBatchNorm {name} mixes the gradients of all before they are weighed; use BatchNorm, or policy bsp"
