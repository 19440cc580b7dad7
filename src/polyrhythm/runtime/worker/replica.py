"""A script's own model and optimizer, seen as flat vectors; their tensors stay where the script has them."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from polyrhythm.core import Policy
from polyrhythm.core.placement import policies_of, runtime_placement
from polyrhythm.errors import ScenarioError, UsageError
from polyrhythm.runtime.wire.protocol import Term
from polyrhythm.runtime.wire.shard_protocol import (
    LEAST_EVEN,
    LEAST_SHARE,
    NOT_IN_SHARES,
    NOT_ON_SERVERS,
    Hyperparameter,
    Layout,
    OptimizerSpec,
    Parameter,
)
from polyrhythm.runtime.worker.optimizers import parts_of, plain_options, settings_of
from polyrhythm.training import flat as flat_vectors
from polyrhythm.training.flat import FlatLayout, local_part, part_of, split_buffers, trainable_parameters
from polyrhythm.training.optimizer import (
    OptimizerState,
    StateVector,
    beginning,
    checked,
    is_stateless,
    number_keys,
    placed,
)
from polyrhythm.training.signals import squared_norm


class ScriptReplica:
    """Copies parameters, gradients and optimizer state out of a script's objects and into them.

    Args:
        model: on one device. Parameters without an optimizer are left alone.
        optimizer: of that model; its parameter groups give the order of the flat vector, and the model that within
            each: a script may make them of sets, whose order every process has for itself.
        moving: parameters of the model that nobody trains but the script changes, by name, treated as buffers are;
            None: nobody has looked for them, and the optimizer must have all parameters that are trainable.

    Attributes:
        unservable: why parameter servers cannot make this optimizer's steps; empty if they can.
        idle: groups whose optimizers make no step now, by their number in the optimizer.
        taken_over: how often parameters have been.

    Raises:
        UsageError: for parameters outside the model, or an optimizer that computes gradients by itself.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, moving: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self.optimizer, self._parts = optimizer, parts_of(optimizer)
        named = {parameter: name for name, parameter in trainable_parameters(model).items()}
        pairs = [(type(part), group) for part in self._parts for group in part.param_groups]
        groups = [[p for p in group["params"] if p.requires_grad] for _, group in pairs]
        check_parameters(named, [p for group in groups for p in group])
        groups = [[p for p in named if p in members] for members in map(set, groups)]
        self._trained = [number for number, group in enumerate(groups) if group]
        self._groups = [groups[number] for number in self._trained]
        self.parameters: list[nn.Parameter] = [p for group in self._groups for p in group]
        if moving is None:
            check_complete(named, self.parameters)
        self._counts = [len(part.param_groups) for part in self._parts]
        self.names = {named[p]: p for p in self.parameters}
        self.layout = FlatLayout.of(*({named[p]: p for p in group} for group in self._groups))
        parts = (tuple(Parameter(one.name, tuple(one.shape)) for one in group) for group in self.layout.groups)
        self.wire_layout = Layout(tuple(parts))
        self.unservable = why_unservable([pairs[number] for number in self._trained], self.layout.dtype)
        self.idle: frozenset[int] = frozenset()
        self.taken_over = 0
        self._gradients: list[Tensor | None] = []
        self._types: dict[tuple[Tensor, str], torch.dtype] = {}
        self._weight: float | None = None
        self._weighing: list[RemovableHandle] = []
        floating, counters = split_buffers(model)
        self.moving = dict(moving or {})
        self.floating, self.counters = [*floating.values(), *self.moving.values()], list(counters.values())

    @property
    def terms(self) -> dict[str, Term]:
        """What must be the same on all workers."""
        own: dict[str, Term] = {
            NOT_ON_SERVERS: self.unservable,
            NOT_IN_SHARES: flat_vectors.why_unshareable(self.model),
            LEAST_SHARE: flat_vectors.least_share(self.model),
            "tensors that change untrained": ", ".join(self.moving),
        }
        return {name: value for name, value in own.items() if value and value != 1}

    @property
    def session_terms(self) -> dict[str, Term]:
        """The same, where the job may cut mini-batches otherwise than a loader of the script does."""
        least = {LEAST_EVEN: self.terms[LEAST_SHARE]} if LEAST_SHARE in self.terms else {}
        return {**self.terms, **least}

    def check_policy(self, policy: Policy[Any]) -> None:
        """Refuse a policy that needs servers, if they cannot make the steps of this model."""
        why = self.terms.get(NOT_ON_SERVERS)
        if why and any(runtime_placement(each) == "servers" for each in policies_of(policy)):
            raise UsageError(
                f"policy {policy.spec} runs on parameter servers, but {why}; use a policy whose workers "
                "make the steps (bsp, local, selsync)"
            )

    def check_trained(self) -> None:
        """Refuse parameters that are to train only now: no exchange has a place for them."""
        known = {*self.parameters}
        groups = (group for part in self._parts for group in part.param_groups)
        late = next((p for group in groups for p in group["params"] if p.requires_grad and p not in known), None)
        if late is not None:
            name = next((name for name, p in self.model.named_parameters() if p is late), "a parameter")
            raise UsageError(
                f"{name} is to train, but it did not when the session began; let it train from the start, in a group "
                "with a rate of 0 until then"
            )

    def copy_state(self) -> list[Any]:
        """The optimizer's state, whatever it is made of."""
        return [copy.deepcopy(self.optimizer.state.get(p, {})) for p in self.parameters]

    def drop_state(self) -> None:
        """The optimizer begins anew; what it has for parameters that are frozen now stays for when they train again."""
        for parameter in self.parameters:
            self.optimizer.state.pop(parameter, None)

    def set_state(self, states: Sequence[Any]) -> None:
        """The reverse; the states are taken over, not copied."""
        self.drop_state()
        for parameter, state in zip(self.parameters, states, strict=True):
            if state:
                self.optimizer.state[parameter] = state

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def weigh(self, weight: float | None) -> None:
        """Multiply what backward passes from now on add to the gradients; None: leave them as they are.

        It happens parameter by parameter before anything is exchanged, so that it is all one which exchange follows.
        """
        self._weight = weight
        if weight is None:
            for handle in self._weighing:
                handle.remove()
            self._weighing.clear()
        elif not self._weighing:
            self._weighing = [p.register_hook(self._weighted) for p in self.parameters]  # type: ignore[no-untyped-call]

    def _weighted(self, gradient: Tensor) -> Tensor:
        return gradient if self._weight is None else gradient * self._weight

    def gather_gradients(self, out: Tensor) -> None:
        """Copy every ``.grad`` into `out`; zeros where a parameter got none."""
        self.layout.gather_gradients(self.parameters, out)

    def gather_parameters(self, out: Tensor) -> None:
        self.layout.gather(self.parameters, out)

    def scatter_parameters(self, flat: Tensor) -> None:
        """Take over parameters. Never between a forward and its backward."""
        self.layout.scatter(flat, self.parameters)
        self.taken_over += 1

    def grad_sq_norm(self) -> float:
        """Squared L2 norm of all gradients together; reads the device once."""
        return squared_norm(local_part(p.grad) for p in self.parameters if p.grad is not None)

    @property
    def damps(self) -> bool:
        """Whether SGD damps the gradients of its momentum, which it does not with the first of each parameter."""
        rows = self._rows()
        return any(issubclass(kind, SGD) and row.get("dampening") and row.get("momentum") for kind, row in rows)

    def hide_gradients(self) -> None:
        """Make the optimizer step that follows do nothing: a parameter without a gradient is left alone."""
        self._gradients = [p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def show_gradients(self) -> None:
        """Give the script its gradients back, which it may log; nothing happens if they were not hidden."""
        if self._gradients:
            for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
                parameter.grad = gradient
            self._gradients = []

    def step(self, parts: Sequence[Optimizer] | None = None) -> None:
        """Make the step that the script has not, and let nobody hear of it who listens to the optimizer."""
        for part in self._parts if parts is None else parts:
            made = type(part).step
            getattr(made, "__wrapped__", made)(part)

    # -- the optimizer -----------------------------------------------------------------------------------------------

    def spec(self) -> OptimizerSpec:
        """What the servers are to build; something small if they cannot be of use."""
        if NOT_ON_SERVERS in self.terms:
            return OptimizerSpec("SGD", {}, tuple({"lr": 0.0} for _ in self.wire_layout.groups))
        rows = self._rows()
        return OptimizerSpec(name_of(rows[0][0]), {}, tuple(plain_options(*row) for row in rows))

    def settings(self) -> tuple[dict[str, Hyperparameter], ...]:
        """Of each group, nothing for those that are idle."""
        rows = zip(self._trained, self._rows(), strict=True)
        return tuple([{} if number in self.idle else settings_of(*row) for number, row in rows])

    def _rows(self) -> list[tuple[type[Optimizer], dict[str, Any]]]:
        """Class and entries of each group of which something is trained, as in the layout; none that came later."""
        parts = zip(self._parts, self._counts, strict=True)
        rows = [(type(part), group) for part, count in parts for group in part.param_groups[:count]]
        return [rows[number] for number in self._trained]

    def of_groups_with(self, *names: str) -> set[nn.Parameter]:
        """Parameters of the groups in which one of these options is in force."""
        pairs = zip(self._rows(), self._groups, strict=True)
        return {p for (_, row), group in pairs if any(row.get(name) for name in names) for p in group}

    @property
    def elementwise(self) -> bool:
        """Whether the servers hold one vector for each group, or one tensor for each parameter."""
        if self.unservable:
            return False
        kind, group = self._rows()[0]
        return checked(kind, plain_options(kind, group))

    def export_state(self, grouped: bool = True) -> OptimizerState:
        """The optimizer's state as the servers hold it, or by parameters, which may have made unequal steps."""
        vectors: dict[str, StateVector] = {}
        numbers: dict[str, tuple[float, ...]] = {}
        single, joins = self._number_keys(), grouped and self.elementwise
        keys = self._state_keys()
        first = [
            beginning(kind, plain_options(kind, row)) if joins and self._lacks(keys, group) else {}
            for (kind, row), group in zip(self._rows(), self._groups, strict=True)
        ]
        for key in keys:
            rows = [
                [self._value(p, key, None if key in single else own.get(key, 0.0)) for p in group]
                for own, group in zip(first, self._groups, strict=True)
            ]
            pieces = [piece for values in rows for piece in (joined(values, key in single) if joins else values)]
            if all(isinstance(piece, Tensor) for piece in pieces):
                tensors = [piece.detach().to("cpu", self.layout.dtype) for piece in pieces]
                joint = torch.cat([tensor.reshape(-1) for tensor in tensors])
                vectors[key] = StateVector(joint, tuple(tensor.shape for tensor in tensors))
            else:
                numbers[key] = tuple(float(piece) for piece in pieces)
        return OptimizerState(vectors, numbers, self._absent(joins))

    def _absent(self, joins: bool) -> frozenset[int]:
        """Places of groups, or else of parameters, that no step has changed yet."""
        sets = self._groups if joins else [[parameter] for parameter in self.parameters]
        stateless = (all(is_stateless(self.optimizer.state.get(p, {})) for p in each) for each in sets)
        return frozenset(place for place, without in enumerate(stateless) if without)

    def import_state(self, state: OptimizerState, grouped: bool = True) -> None:
        self._types = {
            (p, key): value.dtype
            for p, own in self.optimizer.state.items()
            for key, value in own.items()
            if isinstance(value, Tensor)
        }
        self.drop_state()
        spread = [(p, key, piece) for key, each in state.entries() for p, piece in self._spread(each, grouped)]
        single, count = number_keys(spread), len(self._groups if grouped and self.elementwise else self.parameters)
        absent = {p for p, gone in self._spread([n in state.absent for n in range(count)], grouped) if gone}
        for parameter, key, piece in spread:
            if parameter not in absent:
                self.optimizer.state[parameter][key] = self._local(parameter, key, piece, key in single)

    def _state_keys(self) -> list[str]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        return list(dict.fromkeys(key for state in states for key, value in state.items() if value is not None))

    def _number_keys(self) -> frozenset[str]:
        return number_keys((p, key, value) for p, own in self.optimizer.state.items() for key, value in own.items())

    def _lacks(self, keys: Iterable[str], group: Iterable[nn.Parameter]) -> bool:
        state = self.optimizer.state
        return any(state.get(parameter, {}).get(key) is None for parameter in group for key in keys)

    def _value(self, parameter: nn.Parameter, key: str, first: float | None) -> Any:
        """An entry, or else what it begins with, `first` everywhere; None if it is a number, which is the group's."""
        value = self.optimizer.state.get(parameter, {}).get(key)
        if value is not None:
            return local_part(value) if isinstance(value, Tensor) else value
        if first is not None:
            return torch.full_like(local_part(parameter), first)
        return 0 * next(state[key] for state in self.optimizer.state.values() if state.get(key) is not None)

    def _spread(self, pieces: Sequence[Any], grouped: bool) -> list[tuple[nn.Parameter, Any]]:
        if not (grouped and self.elementwise):
            return list(zip(self.parameters, pieces, strict=True))
        pairs: list[tuple[nn.Parameter, Any]] = []
        for group, piece in zip(self._groups, pieces, strict=True):
            if not isinstance(piece, Tensor) or piece.dim() == 0:
                pairs += [(p, piece) for p in group]
            else:
                parts = torch.split(piece, [p.numel() for p in group])
                pairs += [(p, part.view(p.shape)) for p, part in zip(group, parts, strict=True)]
        return pairs

    def _local(self, parameter: nn.Parameter, key: str, value: Any, number: bool) -> Any:
        """A copy in place and type as the optimizer wants it."""
        if not isinstance(value, Tensor):
            return value
        copied = placed(value, parameter, number, self.optimizer)
        kind = self._types.get((parameter, key), torch.float32 if number else parameter.dtype)
        return (copied if number else part_of(parameter, copied)).to(kind)


def joined(values: Sequence[Any], number: bool) -> list[Any]:
    """What the parameters of a group have of one entry, as the group's: a step count is equal over it."""
    return [max(values)] if number else [torch.cat([value.reshape(-1) for value in values])]


def check_complete(names: Mapping[nn.Parameter, str], parameters: list[nn.Parameter]) -> None:
    missing = [name for parameter, name in names.items() if not any(parameter is p for p in parameters)]
    if missing:
        raise UsageError(f"the optimizer does not have {missing[0]}; give it all parameters, or freeze that one")


def check_parameters(names: Mapping[nn.Parameter, str], parameters: list[nn.Parameter]) -> None:
    """The optimizer's parameters are those of the model, each once."""
    if any(parameter not in names for parameter in parameters):
        raise UsageError("the optimizer has parameters that are not in the model; give the session both models")
    if len({*parameters}) < len(parameters):
        raise UsageError("two optimizers have the same parameter; give each parameter to one of them")
    if not parameters:
        raise UsageError("the optimizer has no parameter with requires_grad=True")


def why_unservable(pairs: Sequence[tuple[type[Optimizer], Mapping[str, Any]]], dtype: torch.dtype) -> str:
    """Why servers cannot make these steps; each pair is the class of a parameter group, and the group."""
    kinds, (kind, group) = {kind for kind, _ in pairs}, pairs[0]
    if kind.__name__ == "LBFGS":
        raise UsageError(
            "optimizer LBFGS computes gradients within its step, which no policy can exchange; use another"
        )
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        return f"the optimizers {names} are of several kinds, and a server has one"
    if dtype == torch.float64:
        return "the parameters are float64, and servers have float32"
    return why_unknown(kind) or why_misshapen(kind, plain_options(kind, group))


def why_unknown(kind: type[Optimizer]) -> str:
    known = kind.__module__.startswith("torch.optim")
    return "" if known else f"the optimizer {kind.__name__} is none of torch.optim, which is all that servers know"


def why_misshapen(kind: type[Optimizer], options: Mapping[str, Any]) -> str:
    """Servers hold numbers, and vectors as long as the parameters."""
    weights = torch.zeros(2, 3)
    try:
        if checked(kind, options):
            return ""
        optimizer = kind([weights], **options)
        weights.grad = torch.ones(2, 3)
        optimizer.step()
    except ScenarioError as error:
        return str(error)
    for key, value in optimizer.state[weights].items():
        if isinstance(value, Tensor) and value.shape not in (torch.Size(), weights.shape):
            return (
                f"the optimizer {kind.__name__} keeps {key} in another shape than its parameter, which servers cannot"
            )
    return ""


def name_of(kind: type[Optimizer]) -> str:
    known = kind.__module__.startswith("torch.optim")
    return kind.__name__ if known else f"{kind.__module__}:{kind.__qualname__}"
