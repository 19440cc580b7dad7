"""A script's optimizers: several as one, and the settings of a policy, which they have within a step only."""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from polyrhythm.core import Settings
from polyrhythm.errors import UsageError
from polyrhythm.training.optimizer import momentum_of, set_momentum

STATIC = ("maximize", "decoupled_weight_decay")
"""Entries of a parameter group that do not change while training."""

COMPUTING = ("params", "foreach", "fused", "capturable", "differentiable")
"""Entries of a parameter group that say only how a step is computed."""


class JointState(MutableMapping[Any, Any]):
    """The states of several optimizers as that of one, by parameter."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts
        self._home = {p: part for part in parts for group in part.param_groups for p in group["params"]}

    def __getitem__(self, parameter: Any) -> Any:
        return self._home[parameter].state[parameter]

    def __setitem__(self, parameter: Any, state: Any) -> None:
        self._home[parameter].state[parameter] = state

    def __delitem__(self, parameter: Any) -> None:
        del self._home[parameter].state[parameter]

    def __contains__(self, parameter: Any) -> bool:
        return parameter in self._home and parameter in self._home[parameter].state

    def __iter__(self) -> Iterator[Any]:
        return iter([parameter for part in self._parts for parameter in part.state])

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)


class JointOptimizer(Optimizer):
    """Several optimizers over parameters of their own, to look at as one. It makes no steps.

    >>> import torch
    >>> weights = [torch.zeros(1), torch.zeros(1)]
    >>> joint = JointOptimizer([torch.optim.SGD([weights[0]], lr=1.0), torch.optim.Adam([weights[1]])])
    >>> [group["lr"] for group in joint.param_groups]
    [1.0, 0.001]
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)
        self.state = JointState(parts)  # type: ignore[assignment]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]


def parts_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.parts if isinstance(optimizer, JointOptimizer) else (optimizer,)


class StepSettings:
    """Rates and momenta of one optimizer, as the policy in force wants them.

    Args:
        optimizer: the script's; a scheduler may change its groups between steps.

    Attributes:
        due: whether there is anything to do at the next step.
        own: what the script had set of each group, within a step that is steered.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._settings = Settings()
        self.due = False
        self.own: list[dict[str, Any]] = []

    @property
    def settings(self) -> Settings:
        """What the policy wants."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings
        self.due = settings.lr_scale is not None or settings.momentum is not None

    def begin(self) -> None:
        """A step of the optimizer follows.

        Raises:
            UsageError: if a momentum is set for an optimizer that has none.
        """
        settings = self.settings
        self.own = [{key: group[key] for key in ("lr", "momentum", "betas") if key in group} for group in self._groups]
        for group in self._groups:
            group["lr"] = group["lr"] * (1.0 if settings.lr_scale is None else settings.lr_scale)
            if settings.momentum is not None:
                self._set_momentum(group, settings.momentum)

    def end(self) -> None:
        """The step has been made: the script finds what it had."""
        for group, own in zip(self._groups, self.own, strict=False):
            group.update(own)
        self.own = []

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def _set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        if momentum_of(group) is None:
            name = type(self._optimizer).__name__
            raise UsageError(f"the policy sets a momentum of {momentum:g}, but the optimizer {name} has none")
        set_momentum(group, momentum)


def plain_options(kind: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of one group that its class takes; how a step is computed is the servers' choice."""
    taken = options_of(kind)
    return {key: plain(value) for key, value in group.items() if key in taken}


def settings_of(kind: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that may change while training."""
    options = plain_options(kind, group)
    return {key: value for key, value in options.items() if key not in STATIC and is_setting(value)}


def is_setting(value: Any) -> bool:
    return isinstance(value, (float, int, tuple)) and not isinstance(value, bool)


@cache
def options_of(kind: Callable[..., Optimizer]) -> frozenset[str]:
    """Names of the hyper-parameters that a class takes; asked for at every push, and slow to find out."""
    return frozenset(inspect.signature(kind).parameters).difference(COMPUTING)


def plain(value: Any) -> Any:
    """A number of torch's or numpy's as one of Python's, also in pairs such as betas."""
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return value.item() if isinstance(value, (Tensor, np.generic)) else value
