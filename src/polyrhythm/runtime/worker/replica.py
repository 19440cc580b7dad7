"""A script's own model and optimizer, seen as flat vectors; their tensors stay where the script has them."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.shard_protocol import Hyperparameter, Layout, OptimizerSpec, Parameter
from polyrhythm.training.flat import FlatLayout, split_buffers, trainable_parameters
from polyrhythm.training.optimizer import OptimizerState, StateVector, checked
from polyrhythm.training.signals import squared_norm

COMPUTING = ("params", "foreach", "fused", "capturable", "differentiable")
"""Entries of a parameter group that say only how a step is computed."""
STATIC = ("maximize", "decoupled_weight_decay")
"""Entries that do not change while training."""


class ScriptReplica:
    """Copies parameters, gradients and optimizer state out of a script's objects and into them.

    Args:
        model: float32, on one device.
        optimizer: of that model; its parameter groups give the order of the flat vector.

    Raises:
        UsageError: for parameters outside the optimizer or outside the model, or of another type than float32.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        names = {parameter: name for name, parameter in trainable_parameters(model).items()}
        groups = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
        self.parameters: list[nn.Parameter] = [p for group in groups for p in group]
        check_complete(names, self.parameters)
        check_state(type(optimizer), plain_options(optimizer, optimizer.param_groups[0]))
        self.layout = FlatLayout.of(*({names[p]: p for p in group} for group in groups))
        self.wire_layout = Layout(tuple(tuple(Parameter(names[p], tuple(p.shape)) for p in group) for group in groups))
        self._groups = [group for group in groups if group]
        self._gradients: list[Tensor | None] = []
        floating, counters = split_buffers(model)
        self.floating, self.counters = list(floating.values()), list(counters.values())

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def gather_gradients(self, out: Tensor) -> None:
        """Copy every ``.grad`` into `out`; zeros where a parameter got none."""
        self.layout.gather([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters], out)

    def gather_parameters(self, out: Tensor) -> None:
        self.layout.gather(self.parameters, out)

    def scatter_parameters(self, flat: Tensor) -> None:
        """Take over parameters. Never between a forward and its backward."""
        self.layout.scatter(flat, self.parameters)

    def grad_sq_norm(self) -> float:
        """Squared L2 norm of all gradients together; reads the device once."""
        return squared_norm(p.grad for p in self.parameters if p.grad is not None)

    def hide_gradients(self) -> None:
        """Make the optimizer step that follows do nothing: a parameter without a gradient is left alone."""
        self._gradients = [p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def show_gradients(self) -> None:
        """Give the script its gradients back, which it may log; nothing happens if they were not hidden."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=False):
            parameter.grad = gradient
        self._gradients = []

    # -- the optimizer -----------------------------------------------------------------------------------------------

    def spec(self) -> OptimizerSpec:
        kind = type(self.optimizer)
        known = kind.__module__.startswith("torch.optim")
        name = kind.__name__ if known else f"{kind.__module__}:{kind.__qualname__}"
        groups = (group for group in self.optimizer.param_groups if any(p.requires_grad for p in group["params"]))
        return OptimizerSpec(name, {}, tuple(plain_options(self.optimizer, group) for group in groups))

    def settings(self) -> tuple[dict[str, Hyperparameter], ...]:
        return tuple(
            {
                key: value
                for key, value in plain_options(self.optimizer, group).items()
                if key not in STATIC and is_setting(value)
            }
            for group in self.optimizer.param_groups
            if any(p.requires_grad for p in group["params"])
        )

    @property
    def elementwise(self) -> bool:
        """Whether the servers hold one vector for each group, or one tensor for each parameter."""
        return checked(type(self.optimizer), plain_options(self.optimizer, self.optimizer.param_groups[0]))

    def export_state(self) -> OptimizerState:
        """The optimizer's state as the servers hold it."""
        vectors: dict[str, StateVector] = {}
        numbers: dict[str, tuple[float, ...]] = {}
        for key in self._state_keys():
            pieces = [piece for group in self._groups for piece in self._pieces(group, key)]
            if all(isinstance(piece, Tensor) for piece in pieces):
                tensors = [piece.detach().to("cpu", torch.float32) for piece in pieces]
                joint = torch.cat([tensor.reshape(-1) for tensor in tensors])
                vectors[key] = StateVector(joint, tuple(tensor.shape for tensor in tensors))
            else:
                numbers[key] = tuple(float(piece) for piece in pieces)
        return OptimizerState(vectors, numbers)

    def import_state(self, state: OptimizerState) -> None:
        self.optimizer.state.clear()
        for key, vector in state.vectors.items():
            for parameter, piece in self._spread(vector.pieces()):
                self.optimizer.state[parameter][key] = piece
        for key, values in state.numbers.items():
            for parameter, value in self._spread(list(values)):
                self.optimizer.state[parameter][key] = value

    def _state_keys(self) -> list[str]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        return list(dict.fromkeys(key for state in states for key, value in state.items() if value is not None))

    def _pieces(self, group: list[nn.Parameter], key: str) -> list[Any]:
        values = [self._value(parameter, key) for parameter in group]
        if not self.elementwise:
            return values
        if not isinstance(values[0], Tensor) or values[0].dim() == 0:
            return [max(values)]  # a step count, equal over the group
        return [torch.cat([value.reshape(-1) for value in values])]

    def _value(self, parameter: nn.Parameter, key: str) -> Any:
        value = self.optimizer.state.get(parameter, {}).get(key)
        if value is not None:
            return value
        states = self.optimizer.state.values()
        other = next(state[key] for state in states if state.get(key) is not None)
        scalar = not isinstance(other, Tensor) or other.dim() == 0
        return other * 0 if scalar else torch.zeros_like(parameter)

    def _spread(self, pieces: list[Any]) -> list[tuple[nn.Parameter, Any]]:
        if not self.elementwise:
            return [(p, self._local(p, piece)) for p, piece in zip(self.parameters, pieces, strict=True)]
        pairs = []
        for group, piece in zip(self._groups, pieces, strict=True):
            if not isinstance(piece, Tensor) or piece.dim() == 0:
                pairs += [(p, self._local(p, piece)) for p in group]
            else:
                parts = torch.split(piece, [p.numel() for p in group])
                pairs += [(p, self._local(p, part.view(p.shape))) for p, part in zip(group, parts, strict=True)]
        return pairs

    def _local(self, parameter: nn.Parameter, value: Any) -> Any:
        """A copy where the optimizer wants it: vectors beside the parameter, step counts where torch keeps them."""
        if not isinstance(value, Tensor):
            return value
        if value.dim() == 0 and not any(group.get("fused") for group in self.optimizer.param_groups):
            return value.clone()
        return value.to(parameter.device, copy=True)


def check_complete(names: Mapping[nn.Parameter, str], parameters: list[nn.Parameter]) -> None:
    """Model and optimizer speak of the same parameters."""
    missing = [name for parameter, name in names.items() if not any(parameter is p for p in parameters)]
    if missing:
        raise UsageError(f"the optimizer does not have {missing[0]}; give it all parameters, or freeze that one")
    if len(parameters) > len(names):
        raise UsageError("the optimizer has parameters that are not in the model; give the session both models")


def check_state(kind: type[Optimizer], options: Mapping[str, Any]) -> None:
    """Its state can be handed over: every entry is a number, or as large as its parameter.

    Raises:
        UsageError: for an optimizer such as Adafactor, or one that needs closures, such as LBFGS.
    """
    if checked(kind, options):
        return
    weights = torch.zeros(2, 3)
    optimizer = kind([weights], **options)
    weights.grad = torch.ones(2, 3)
    optimizer.step()
    for key, value in optimizer.state[weights].items():
        if isinstance(value, Tensor) and value.shape not in (torch.Size(), weights.shape):
            raise UsageError(
                f"optimizer {kind.__name__} keeps {key} in another shape than its parameter, which cannot be handed "
                "over to servers and other workers; use another optimizer"
            )


def plain_options(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of one group that its class takes; how a step is computed is the servers' choice."""
    kind: Any = type(optimizer)
    taken = options_of(kind)
    return {key: plain(value) for key, value in group.items() if key in taken}


@cache
def options_of(kind: Callable[..., Optimizer]) -> frozenset[str]:
    """Names of the hyper-parameters that a class takes; asked for at every push, and slow to find out."""
    return frozenset(inspect.signature(kind).parameters).difference(COMPUTING)


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def is_setting(value: Any) -> bool:
    return isinstance(value, (float, int, tuple)) and not isinstance(value, bool)
