"""Any torch optimizer on a flat vector, with its state as named flat vectors.

Elementwise optimizers do the same to one long vector as to many small tensors, and are many times faster so. Whether a
class is one of them is not known from its name but found out: it is stepped once on a random 2x3 tensor and on the
same numbers flat. If the results differ (Adafactor) or it refuses vectors (Muon), it gets views with the parameters'
own shapes on the same flat vector instead.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyrhythm.errors import ScenarioError, did_you_mean
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.flat import FlatLayout, Segment

Options = Mapping[str, Any]

NUMBERS: Final = frozenset({"step", "eta", "mu", "mu_product"})
"""Entries of which torch.optim keeps one number for each parameter, whatever its shape."""


@dataclass(frozen=True, slots=True)
class StateVector:
    """One entry of an optimizer's state, such as its momentum, over all its tensors, joined in order.

    `shapes` has the shape of each piece; ``()`` is a scalar that the optimizer keeps as a tensor, such as a step count.
    """

    values: Tensor
    shapes: tuple[torch.Size, ...]

    def pieces(self) -> list[Tensor]:
        """One view for each of the optimizer's tensors."""
        parts = torch.split(self.values, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """State of an optimizer: vectors, and Python numbers with one value for each of its tensors. Empty when new.

    `absent` are the places of tensors that have none yet; their entries are zeros without a meaning.
    """

    vectors: dict[str, StateVector]
    numbers: dict[str, tuple[float, ...]]
    absent: frozenset[int] = frozenset()

    def entries(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Each entry's name, and its values, one for each tensor."""
        yield from ((key, vector.pieces()) for key, vector in self.vectors.items())
        yield from self.numbers.items()


class FlatOptimizer:
    """A torch optimizer on one flat vector.

    Args:
        kind: class of torch.optim or a subclass of Optimizer.
        options: its hyper-parameters, for all groups; a group's own come first.
        parameters: the vector; steps change it in place.
        layout: places of the tensors in it; its groups become parameter groups.
        group_options: hyper-parameters of each group.

    Raises:
        ScenarioError: for an option that the class does not have or refuses, or a class that needs closures.

    Example:
        >>> flat = torch.ones(4)
        >>> layout = FlatLayout.of({"w": flat.view(2, 2)})
        >>> FlatOptimizer(torch.optim.SGD, {"lr": 0.5}, flat, layout).step(torch.ones(4))
        >>> flat
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self,
        kind: type[Optimizer],
        options: Options,
        parameters: Tensor,
        layout: FlatLayout,
        group_options: Sequence[Options] | None = None,
    ) -> None:
        self._recipe = (kind, options, layout, group_options)
        self.elementwise = checked(kind, options)
        own = group_options or [{}] * len(layout.groups)
        segments = [joined(group) if self.elementwise else group for group in layout.groups]
        self.segments = [segment for group in segments for segment in group]
        self.tensors = [segment.view(parameters) for segment in self.segments]
        tensors = iter(self.tensors)
        groups = [{**o, "params": [next(tensors) for _ in g]} for g, o in zip(segments, own, strict=True)]
        self.optimizer = build(kind, groups, {**options, **fused_option(kind, options)})
        self._step = partial(bare_step(kind, options), self.optimizer) if self.elementwise else self.optimizer.step
        self._plain = self.elementwise and is_plain(kind, options)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.momenta = [momentum_of(group) for group in self.optimizer.param_groups]
        self.applied: tuple[float, float | None] = (1.0, None)
        self.idle: frozenset[int] = frozenset()
        """Numbers of groups whose tensors stay as they are in the next steps."""
        self._group_of = [number for number, group in enumerate(segments) for _ in group]

    def on(self, parameters: Tensor) -> "FlatOptimizer":
        """A new optimizer of the same kind, without state, on another vector."""
        kind, options, layout, group_options = self._recipe
        return FlatOptimizer(kind, options, parameters, layout, group_options)

    def step(self, gradient: Tensor, lr_scale: float = 1.0, momentum: float | None = None) -> None:
        """One update with a flat gradient, at `lr_scale` times each group's rate; `gradient` may be changed.

        Args:
            gradient: shape of the parameters' vector.
            lr_scale: factor for this step only.
            momentum: momentum (or the first beta) of this step only; None is each group's own.
        """
        if self.applied != (lr_scale, momentum):
            self._apply(lr_scale, momentum)
        if len(self.tensors) == 1 and not self.idle:
            group = self.optimizer.param_groups[0]
            if self._plain and has_only_a_rate(group):
                self.tensors[0].add_(gradient, alpha=-group["lr"])
                return
            self.tensors[0].grad = gradient
        else:
            for tensor, segment, group_number in zip(self.tensors, self.segments, self._group_of, strict=True):
                tensor.grad = None if group_number in self.idle else segment.view(gradient)
        self._step()

    def _apply(self, lr_scale: float, momentum: float | None) -> None:
        for group, rate, own in zip(self.optimizer.param_groups, self.rates, self.momenta, strict=True):
            group["lr"] = rate * lr_scale
            if own is not None:
                set_momentum(group, own if momentum is None else momentum)
            elif momentum is not None:
                name = type(self.optimizer).__name__
                raise ScenarioError(f"momentum {momentum} was asked for but the optimizer {name} has none")
        self.applied = (lr_scale, momentum)

    def state(self) -> OptimizerState:
        """A copy of the state; empty before the first step and after `reset`."""
        states = [self.optimizer.state.get(tensor, {}) for tensor in self.tensors]
        pairs = list(zip(self.tensors, states, strict=True))
        single = number_keys((tensor, key, value) for tensor, state in pairs for key, value in state.items())
        vectors, numbers = {}, {}
        for key in dict.fromkeys(key for state in states for key in state):
            known = next(state[key] for state in states if key in state)
            values = [state.get(key, fresh(known, tensor, key in single)) for tensor, state in pairs]
            if isinstance(values[0], Tensor):
                joint = torch.cat([value.reshape(-1) for value in values])
                vectors[key] = StateVector(joint, tuple(value.shape for value in values))
            elif values[0] is not None:
                numbers[key] = tuple(values)
        return OptimizerState(vectors, numbers, frozenset(n for n, own in enumerate(states) if is_stateless(own)))

    def load_state(self, state: OptimizerState) -> None:
        """Take over a state of the same class on the same layout; it is copied."""
        self.reset()
        for key, values in state.entries():
            for place, (tensor, value) in enumerate(zip(self.tensors, values, strict=True)):
                if place not in state.absent:  # it begins its state itself, and not every optimizer does so with zeros
                    self.optimizer.state[tensor][key] = value.clone() if isinstance(value, Tensor) else value

    def reset(self) -> None:
        """Forget the state, as if no step had been made."""
        self.optimizer.state.clear()


def is_stateless(entries: Mapping[str, Any]) -> bool:
    """Whether an optimizer has nothing for a parameter yet; SGD without momentum has an entry that is None."""
    return all(value is None for value in entries.values())


def fresh(entry: Any, tensor: Tensor, number: bool) -> Any:
    """What an entry such as this is for a tensor that has made no step yet."""
    if isinstance(entry, Tensor):
        return torch.zeros_like(entry) if number else torch.zeros_like(tensor)
    return 0 if isinstance(entry, (int, float)) else None


def beginning(kind: type[Optimizer], options: Options) -> dict[str, float]:
    """What each entry of a tensor's state begins with, found by a step from zeros along zeros.

    Numbers count that step.

    Example:
        >>> beginning(torch.optim.Rprop, {"lr": 0.25})
        {'step': 1.0, 'prev': 0.0, 'step_size': 0.25}
    """
    weight = torch.zeros(1)
    weight.grad = torch.zeros(1)
    optimizer = build(kind, [{"params": [weight]}], options)
    optimizer.step()
    return {key: float(value) for key, value in optimizer.state[weight].items() if value is not None}


def number_keys(entries: Iterable[tuple[Tensor, str, Any]]) -> frozenset[str]:
    """Those keys of an optimizer's state of which each parameter has a number, and no tensor of its own shape.

    A parameter without dimensions has both in the same shape: then others tell, and if there are none, the name.

    Args:
        entries: parameter, key and value.

    Example:
        >>> scale, weight = torch.tensor(1.0), torch.ones(2)
        >>> number_keys([(scale, "step", torch.tensor(3.0)), (scale, "exp_avg", torch.tensor(0.1))])
        frozenset({'step'})
        >>> number_keys([(scale, "mu", torch.tensor(0.1)), (weight, "mu", torch.ones(2))])
        frozenset()
    """
    found: dict[str, bool] = {}
    for parameter, key, value in entries:
        if value is None:
            continue
        if not isinstance(value, Tensor):
            found[key] = found.get(key, True)
        elif parameter.dim() or value.dim():
            found[key] = not value.dim()
        else:
            found.setdefault(key, key in NUMBERS)
    return frozenset(key for key, single in found.items() if single)


def placed(value: Tensor, parameter: Tensor, number: bool, optimizer: Optimizer) -> Tensor:
    """A copy where torch keeps it: beside the parameter, but numbers on the CPU if steps are not fused or captured."""
    beside = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    return value.clone() if number and not beside else value.to(parameter.device, copy=True)


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of torch.optim of that name.

    >>> optimizer_class("Adm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polyrhythm.errors.ScenarioError: unknown optimizer 'Adm': did you mean Adam? Known: ...
    """
    known = {
        key: value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
    }
    if name not in known:
        raise ScenarioError(f"unknown optimizer {name!r}: {did_you_mean(name, known)}")
    return known[name]


def configured_optimizer(config: TrainingConfig, parameters: Tensor, layout: FlatLayout) -> FlatOptimizer:
    """The optimizer of a configuration on a flat vector."""
    return FlatOptimizer(optimizer_class(config.optimizer), configured_options(config), parameters, layout)


def configured_options(config: TrainingConfig) -> Options:
    """Hyper-parameters of a configuration; those that are zero are left to the class."""
    asked = {"weight_decay": config.weight_decay, "momentum": config.momentum, "nesterov": config.nesterov}
    given = {name: value for name, value in asked.items() if value}
    return {"lr": config.learning_rate, **given, **config.optimizer_options}


def check_options(kind: type[Optimizer], options: Options) -> None:
    """Every option is an argument of the class."""
    known = [name for name in inspect.signature(kind).parameters if name != "params"]
    for name in options:
        if name not in known:
            raise ScenarioError(f"optimizer {kind.__name__} has no option {name!r}: {did_you_mean(name, known)}")


def build(kind: type[Optimizer], groups: Sequence[Options], options: Options) -> Optimizer:
    """An optimizer; what its class refuses becomes one clear line."""
    try:
        return kind([dict(group) for group in groups], **options)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"optimizer {kind.__name__} refuses its options or the model: {error}") from error


def fused_option(kind: type[Optimizer], options: Options) -> Options:
    """``fused=True`` where the class has it and it is faster: everywhere but in SGD without momentum.

    There it says ``foreach=False`` instead, so that torch need not find that out at every step.
    """
    if "fused" not in inspect.signature(kind).parameters or options.keys() & {"fused", "foreach"}:
        return {}
    plain_sgd = issubclass(kind, torch.optim.SGD) and not options.get("momentum")
    return {"foreach": False} if plain_sgd else {"fused": True}


def momentum_of(group: Options) -> float | None:
    """The momentum of a parameter group, or its first beta; None if its optimizer has neither."""
    if isinstance(group.get("betas"), (tuple, list)):
        return float(group["betas"][0])
    return float(group["momentum"]) if "momentum" in group else None


def set_momentum(group: dict[str, Any], value: float) -> None:
    """The reverse of `momentum_of`."""
    if "momentum" in group:
        group["momentum"] = value
    else:
        group["betas"] = (value, *group["betas"][1:])


def joined(group: Sequence[Segment]) -> list[Segment]:
    """The segments of one group as a single one; none for an empty group."""
    if not group:
        return []
    start, stop = group[0].start, group[-1].stop
    return [Segment(group[0].name, torch.Size([stop - start]), start, stop)]


CHECKED: dict[tuple[type[Optimizer], str], bool] = {}
"""Answers of `is_elementwise` so far, by class and options."""


def checked(kind: type[Optimizer], options: Options) -> bool:
    """`is_elementwise`, found out once, after a look at the options."""
    key = (kind, repr(sorted(options.items())))
    if key not in CHECKED:
        check_options(kind, options)
        CHECKED[key] = is_elementwise(kind, options)
    return CHECKED[key]


def bare_step(kind: type[Optimizer], options: Options) -> Callable[[Optimizer], Any]:
    """``kind.step`` without what torch wraps around it, profiling and hooks, which costs more than a small step."""
    step: Callable[[Optimizer], Any] = inspect.unwrap(kind.step)
    return partial(descend, step) if is_plain(kind, options) else step


def is_plain(kind: type[Optimizer], options: Options) -> bool:
    """Whether it is SGD with nothing but a rate, unless a group has more."""
    return kind is torch.optim.SGD and options.keys() <= {"lr"}


def has_only_a_rate(group: dict[str, Any]) -> bool:
    """Whether a group of plain SGD has nothing more now."""
    return not (group["momentum"] or group["weight_decay"] or group["maximize"])


def descend(step: Callable[[Optimizer], Any], optimizer: Optimizer) -> None:
    """A step of SGD with nothing but a rate, unless a group or a policy has more: as torch, with less overhead."""
    if not all(has_only_a_rate(group) for group in optimizer.param_groups):
        step(optimizer)
        return
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if tensor.grad is not None:
                tensor.add_(tensor.grad, alpha=-group["lr"])


def is_elementwise(kind: type[Optimizer], options: Options) -> bool:
    """Whether steps on a tensor and bare, fused ones on the same numbers as a vector agree to rounding.

    Raises:
        ScenarioError: if the class takes neither, such as LBFGS, which needs closures.
    """
    generator = torch.Generator().manual_seed(0)
    weights, gradients = torch.randn(2, 2, 3, generator=generator)
    try:
        fused = {**options, **fused_option(kind, options)}
        flat = stepped(kind, weights.reshape(-1), gradients.reshape(-1), fused, bare_step(kind, options))
    except Exception:  # a class may refuse vectors in any way; whether that is all is seen below
        flat = None
    try:
        shaped = stepped(kind, weights, gradients, options, kind.step)
    except Exception as error:
        raise ScenarioError(f"optimizer {kind.__name__} cannot be used here: {error}") from error
    return flat is not None and torch.allclose(flat.view(2, 3), shaped, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def stepped(
    kind: type[Optimizer], weights: Tensor, gradients: Tensor, options: Options, step: Callable[[Optimizer], Any]
) -> Tensor:
    """`weights` after three steps."""
    weights = weights.clone()
    optimizer = kind([weights], **options)
    for _ in range(3):
        weights.grad = gradients.clone()
        step(optimizer)
    return weights
