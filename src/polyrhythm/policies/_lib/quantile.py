"""A running quantile of a stream of positive numbers, as one number that follows a drift."""

import math
from dataclasses import dataclass

SLOWEST = 0.02
"""Smallest share of its way that an estimate goes at a time; larger follows a drift faster and is noisier."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """Estimate of the value below which the share p of a stream lies, by stochastic approximation.

    On a value above the estimate q, ``log q`` rises by ``gain * p``, otherwise it falls by ``gain * (1 - p)``, with a
    gain of ``1 / sqrt(count)`` that never falls below `SLOWEST`. At rest the share p lies below. Whatever the stream,
    the share of values above q differs from 1 - p in the long run by no more than ``range of log q / (gain * count)``.

    Args:
        share: p, from 0 to 1.
        log_value: log q; where it starts is a guess.
        count: values so far.

    Example:
        >>> median = Quantile(0.5)
        >>> for step in range(2000):
        ...     median = median.after(1.0 + step * 7 % 10)
        >>> 4.5 < median.value < 6.5
        True
    """

    share: float
    log_value: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        return math.exp(self.log_value)

    def after(self, value: float) -> "Quantile":
        return self.moved(value > self.value)

    def moved(self, above: bool) -> "Quantile":
        """The estimate after one more value, of which only is known whether it was above."""
        gain = max(SLOWEST, (self.count + 1) ** -0.5)
        step = self.share if above else self.share - 1
        return Quantile(self.share, self.log_value + gain * step, self.count + 1)
