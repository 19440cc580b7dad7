"""How a server applies a gradient that was computed on parameters it has since moved away from.

With w the parameters now, b those that the worker really read, g the gradient, eta the learning rate and s the
staleness (updates between the read and the application):

| spec | gradient applied | rate |
|---|---|---|
| ``none`` | g | eta |
| ``lr-staleness`` | g | eta / max(1, s) |
| ``dc-asgd:lambda=L`` | g + L g*g*(w - b) | eta |
| ``dc-asgd-adaptive:lambda=L,decay=m`` | g + L / sqrt(v + 1e-7) g*g*(w - b) | eta |

with elementwise products and a running mean square v <- m v + (1 - m) g*g that the server keeps. The second method is
that of Zhang et al. 2016 (staleness-aware async-SGD), the last two are those of Zheng et al. 2017. Compensation is no
schedule: it goes with every policy. The backup b belongs to the worker; one that all share, as in MXNet, compensates
nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from polyrhythm.core.spec import split
from polyrhythm.errors import ScenarioError, did_you_mean

if TYPE_CHECKING:  # the configuration parses specs without importing torch
    from torch import Tensor

EPSILON = 1e-7
"""Keeps the adaptive method finite where a gradient has always been zero; the value of Zheng et al."""


@dataclass(frozen=True)
class Compensation:
    """Apply a stale gradient like a fresh one; base of the other methods."""

    name: ClassVar[str] = "none"
    needs_backup: ClassVar[bool] = False
    """Whether `correct` reads what the worker read."""
    needs_mean_square: ClassVar[bool] = False
    """Whether `correct` keeps a running mean square."""
    scales_rate: ClassVar[bool] = False
    """Whether `lr_scale` is anything but 1."""

    def lr_scale(self, staleness: int) -> float:
        """Factor on the learning rate."""
        return 1.0

    def correct(self, gradient: "Tensor", drift: "Tensor", mean_square: "Tensor | None") -> "Tensor":
        """The gradient to apply, given ``drift = w - b``; a new tensor, and `mean_square` advances in place."""
        return gradient


@dataclass(frozen=True)
class LrByStaleness(Compensation):
    """Divide the learning rate by the staleness."""

    name: ClassVar[str] = "lr-staleness"
    scales_rate: ClassVar[bool] = True

    def lr_scale(self, staleness: int) -> float:
        """1 / max(1, s)."""
        return 1.0 / max(1, staleness)


@dataclass(frozen=True)
class DelayCompensated(Compensation):
    """Add a first-order estimate of how the gradient changed, with g*g in place of the Hessian's diagonal."""

    strength: float = 0.04

    name: ClassVar[str] = "dc-asgd"
    needs_backup: ClassVar[bool] = True

    def correct(self, gradient: "Tensor", drift: "Tensor", mean_square: "Tensor | None") -> "Tensor":
        """g + L g*g*(w - b)."""
        return gradient.addcmul(gradient.square(), drift, value=self.strength)


@dataclass(frozen=True)
class AdaptiveDelayCompensated(Compensation):
    """As `DelayCompensated`, weaker for parameters whose gradients have been large."""

    strength: float = 2.0
    decay: float = 0.95

    name: ClassVar[str] = "dc-asgd-adaptive"
    needs_backup: ClassVar[bool] = True
    needs_mean_square: ClassVar[bool] = True

    def correct(self, gradient: "Tensor", drift: "Tensor", mean_square: "Tensor | None") -> "Tensor":
        """g + L / sqrt(v + 1e-7) g*g*(w - b), after v has taken g in."""
        assert mean_square is not None
        square = gradient.square()
        mean_square.lerp_(square, 1.0 - self.decay)
        return gradient.addcmul(square.div_((mean_square + EPSILON).sqrt_()), drift, value=self.strength)


METHODS: dict[str, type[Compensation]] = {
    method.name: method for method in (Compensation, LrByStaleness, DelayCompensated, AdaptiveDelayCompensated)
}
KEYS = {"lambda": "strength", "decay": "decay"}
"""Fields by the keys that a spec uses for them."""


def parse_compensation(spec: str) -> Compensation:
    """The method that a spec names; the first value may stand without its key.

    Raises:
        ScenarioError: for an unknown name or key, or an impossible value.

    Example:
        >>> parse_compensation("dc-asgd:lambda=0.1")
        DelayCompensated(strength=0.1)
        >>> parse_compensation("dc-asgd:0.1") == parse_compensation("dc-asgd:lambda=0.1")
        True
    """
    name, _, arguments = spec.strip().partition(":")
    if name not in METHODS:
        raise ScenarioError(f"unknown compensation {name!r}: {did_you_mean(name, METHODS)}")
    parts = [part.strip().partition("=") for part in split(arguments)] if arguments else []
    known = [key for key, field in KEYS.items() if hasattr(METHODS[name], field)]
    values = {}
    for position, (key, equals, value) in enumerate(parts):
        key, value = (key, value) if equals else ("lambda" if position == 0 else "", key)
        if key not in known:
            accepted = did_you_mean(key, known) if known else "it takes none"
            raise ScenarioError(f"compensation {spec!r} has no parameter {key!r}: {accepted}")
        values[KEYS[key]] = read_number(spec, key, value)
    return METHODS[name](**values)


def read_number(spec: str, key: str, value: str) -> float:
    """A non-negative number; a decay is below 1."""
    bound = 1.0 if key == "decay" else float("inf")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < bound:
        raise ScenarioError(f"compensation {spec!r}: {key} must be a number in [0, {bound:g}) but got {value!r}")
    return number
