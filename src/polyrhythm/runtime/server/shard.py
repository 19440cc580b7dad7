"""One shard of the global parameters: a vector that several processes can read, and the optimizer that steps it."""

import importlib
import math
from collections.abc import Collection, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm.runtime.wire.recovery.memory import AVAILABLE
from polyrhythm.runtime.wire.segments import ShardSpan, cut_spans, group_sizes, shard_layout
from polyrhythm.runtime.wire.shard_protocol import Hyperparameter, Layout, OptimizerSpec, StateShape
from polyrhythm.runtime.wire.shared_memory import SharedVector
from polyrhythm.training.compensation import Compensation
from polyrhythm.training.optimizer import NUMBERS, FlatOptimizer, OptimizerState, momentum_of, optimizer_class
from polyrhythm.training.server import GlobalParameters, Push

MAX_STATE: Final = 16
"""Vectors of optimizer state, each as long as the parameters, that may be loaded."""


class ParameterShard:
    """Parameters, optimizer state and version of one span of a model.

    Args:
        layout: the whole model's parameters.
        index: which shard of `count` this is.
        count: shards of the job.
        optimizer: how to build the optimizer.
        compensation: what is done about staleness.
        allowed: ``module:Class`` names of optimizers outside of torch.optim that the job's owner has named.

    Raises:
        UsageError: for an optimizer that is unknown, not allowed or cannot work on a part of a model.
    """

    def __init__(
        self,
        layout: Layout,
        index: int,
        count: int,
        optimizer: OptimizerSpec,
        compensation: Compensation,
        allowed: Collection[str] = (),
    ) -> None:
        self.span: ShardSpan = cut_spans(group_sizes(layout), count)[index]
        self.memory = SharedVector.create(self.span.elements) if AVAILABLE else None
        self.vector = self.memory.values if self.memory else torch.zeros(self.span.elements)
        if len(optimizer.groups) not in (0, len(layout.groups)):
            raise UsageError(f"optimizer has {len(optimizer.groups)} groups but the model {len(layout.groups)}")
        flat = shard_layout(layout, self.span, whole=count == 1)
        self._kind = optimizer.kind
        kind = find_optimizer(self._kind, allowed)
        groups = [as_tuples(optimizer.groups[p.group]) for p in self.span.pieces] if optimizer.groups else None
        self._optimizer = FlatOptimizer(kind, as_tuples(optimizer.options), self.vector, flat, groups)
        if count > 1 and not self._optimizer.elementwise:
            raise UsageError(f"optimizer {optimizer.kind} needs whole tensors; use one shard instead of {count}")
        self._global = GlobalParameters(self.vector, self._optimizer, compensation)
        self._groups = len(layout.groups)
        self._settings: Sequence[dict[str, Hyperparameter]] = ()

    @property
    def version(self) -> int:
        """Number of updates, or what the last upload said plus those since."""
        return self._global.version

    def apply(
        self, pushes: Sequence[Push], lr_scale: float = 1.0, settings: Sequence[dict[str, Hyperparameter]] = ()
    ) -> None:
        """One optimizer step with the weighted mean of some gradients; see `GlobalParameters.apply`.

        Args:
            pushes: gradients of this span.
            lr_scale: factor on every rate, for this step.
            settings: for each group of the model, hyper-parameters that hold from now on; a group of which nothing is
                said makes no step.
        """
        if settings and settings != self._settings:
            rows = [(position, settings[piece.group]) for position, piece in enumerate(self.span.pieces)]
            for position, row in rows:
                if row:
                    configure(self._optimizer, position, row)
            self._optimizer.idle = frozenset(position for position, row in rows if not row)
            self._settings = settings
        if self.memory is not None:
            self.memory.begin()
        self._global.apply(pushes, lr_scale)
        if self.memory is not None:
            self.memory.end(self._global.version)

    def check_settings(self, settings: Sequence[dict[str, Hyperparameter]], whose: str) -> None:
        """What comes with a gradient can be set.

        Raises:
            UsageError: for another number of groups, a setting that there is not, or a value of another kind.
        """
        if len(settings) != self._groups:
            raise UsageError(f"settings of {whose} are for {len(settings)} groups but the model has {self._groups}")
        for position, piece in enumerate(self.span.pieces):
            check_group(settings[piece.group], self._optimizer.optimizer.param_groups[position], whose)

    def load(self, parameters: Tensor, state: OptimizerState, version: int) -> None:
        if self.memory is not None:
            self.memory.begin()
        self._global.assign(parameters)
        self._optimizer.load_state(state)
        self._global.version = version
        if self.memory is not None:
            self.memory.end(version)

    def check_state(self, shape: StateShape) -> None:
        """An optimizer state fits this span.

        Raises:
            UsageError: if a vector has other shapes than the parameters, or there are too many.
        """
        own = [tuple(tensor.shape) for tensor in self._optimizer.tensors]
        if len(shape.vectors) > MAX_STATE:
            raise UsageError(f"optimizer state has {len(shape.vectors)} vectors; at most {MAX_STATE} are expected")
        for key, given in shape.vectors.items():
            pairs = zip(given, own, strict=False)
            if len(given) != len(own) or not all(piece in self._shapes(key, shape) for piece, shape in pairs):
                raise UsageError(f"optimizer state {key!r} has shapes {given} but the parameters have {own}")
        for key, numbers in shape.numbers.items():
            if len(numbers) != len(own):
                raise UsageError(f"optimizer state {key!r} has {len(numbers)} values for {len(own)} tensors")

    def _shapes(self, key: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """What an entry of a tensor of this shape may have; a momentum that is one number would fail in a step."""
        if ":" in self._kind:
            return (), shape
        return ((),) if key in NUMBERS else (shape,)

    def state(self) -> OptimizerState:
        """A copy of the optimizer's state."""
        return self._optimizer.state()


def configure(optimizer: FlatOptimizer, position: int, settings: dict[str, Any]) -> None:
    group = optimizer.optimizer.param_groups[position]
    group.update(settings)
    optimizer.rates[position] = settings.get("lr", optimizer.rates[position])
    optimizer.momenta[position] = momentum_of(group)
    optimizer.applied = (math.nan, None)  # equal to nothing, so that the next step derives its own values again


def check_group(settings: dict[str, Hyperparameter], group: dict[str, Any], whose: str) -> None:
    for key, value in settings.items():
        if key not in group or key == "params":
            raise UsageError(f"the optimizer has no setting {key!r} of {whose}: {did_you_mean(key, group)}")
        if not same_kind(value, group[key]):
            raise UsageError(f"setting {key!r} of {whose} is {value!r}, where the optimizer has {group[key]!r}")


def same_kind(value: Any, other: Any) -> bool:
    """Whether a value can take the place of another; a rate may also be a whole number.

    >>> same_kind(1, 0.5), same_kind((0.9, 0.99), (0.9, 0.999)), same_kind(True, 0.5), same_kind((0.9,), (0.9, 0.999))
    (True, True, False, False)
    """
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other)
    plain = isinstance(value, int | float), isinstance(other, int | float)
    if all(plain) and isinstance(value, bool) == isinstance(other, bool):
        return True
    return type(value) is type(other)


def find_optimizer(name: str, allowed: Collection[str]) -> type[Optimizer]:
    if ":" not in name:
        return optimizer_class(name)
    if name not in allowed:
        raise UsageError(f"optimizer {name} is not from torch.optim; the job's owner must allow it by this name")
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise UsageError(f"optimizer {name} is no subclass of torch.optim.Optimizer")
    return found


def as_tuples(options: dict[str, Any]) -> dict[str, Any]:
    """Options as they were before msgpack turned tuples into lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def warm_up() -> None:
    # Import what torch imports when the first optimizer is made, a second's work, before it is needed.
    weights = torch.zeros(1)
    weights.grad = torch.zeros(1)
    torch.optim.SGD([weights], lr=0.0).step()
