"""Numbers with their spread over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

Text = Callable[[float], str]


def percent(value: float) -> str:
    """A share in percent with one decimal.

    >>> percent(0.8774)
    '87.7 %'
    """
    return f"{100 * value:.1f} %"


def points(value: float) -> str:
    """A difference of two shares, in percentage points.

    >>> points(-0.0031)
    '-0.3 pt'
    """
    return f"{100 * value:+.1f} pt"


def times(value: float) -> str:
    """A ratio, to three significant digits.

    >>> times(77.31), times(0.0567)
    ('77.3x', '0.0567x')
    """
    return f"{value:.3g}x"


def seconds(value: float) -> str:
    """A duration, to three significant digits and whole seconds beyond.

    >>> seconds(0.0812), seconds(41610.2)
    ('0.0812 s', '41,610 s')
    """
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def plain(value: float) -> str:
    """A number without a unit.

    >>> plain(7754.2), plain(0.777)
    ('7,754', '0.777')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def perplexities(value: float) -> str:
    """A perplexity.

    >>> perplexities(56.47)
    '56.5'
    """
    return f"{value:.1f}"


def signed(value: float) -> str:
    """A difference of two perplexities.

    >>> signed(-0.104), signed(2.0)
    ('-0.10', '+2.00')
    """
    return f"{value:+.2f}"


QUALITIES = (percent, points, perplexities, signed)
"""What a run has unless it diverged."""


@dataclass(frozen=True)
class Measured:
    """What was measured: a headline over all seeds, and each seed's value; None where a seed has no such value.

    An accuracy is missing where a run diverged, a time where a target was never reached.

    Example:
        >>> str(Measured(0.875, (0.87, 0.88), percent)), str(Measured(None, (None, 12.0), seconds))
        ('87.5 % (87.0 % to 88.0 %)', 'never (1 of 2 seeds: 12 s)')
        >>> str(Measured(None, (None, 0.5), percent))
        'diverged (1 of 2 seeds: 50.0 %)'
    """

    value: float | None
    seeds: tuple[float | None, ...]
    text: Text = plain

    def __str__(self) -> str:
        there = [seed for seed in self.seeds if seed is not None]
        if self.value is None:
            some = f" ({len(there)} of {len(self.seeds)} seeds: {', '.join(map(self.text, there))})" if there else ""
            return ("diverged" if self.text in QUALITIES else "never") + some
        spread = f" ({self.text(min(there))} to {self.text(max(there))})" if len(there) > 1 else ""
        return self.text(self.value) + spread


def mean_text(measured: Measured) -> str:
    """The headline without its spread.

    >>> mean_text(Measured(2.0, (1.0, 3.0), times)), mean_text(Measured(None, (None, 12.0), seconds))
    ('2x', 'never')
    """
    return str(replace(measured, seeds=()))


def over_seeds(values: Sequence[float | None], text: Text = plain) -> Measured:
    """The mean over seeds; None if a seed has no value, because a mean over the lucky ones would flatter.

    >>> over_seeds([1.0, 3.0]).value, over_seeds([1.0, None]).value
    (2.0, None)
    """
    there = [value for value in values if value is not None]
    return Measured(fmean(there) if there and len(there) == len(values) else None, tuple(values), text)


def ratio(tops: Sequence[float | None], bottoms: Sequence[float | None], text: Text = times) -> Measured:
    """The ratio of the means, which is not the mean of the ratios; the seeds' own ratios are its spread.

    >>> str(ratio([2.0, 6.0], [1.0, 1.0]))
    '4x (2x to 6x)'
    """
    top, bottom = over_seeds(tops).value, over_seeds(bottoms).value
    seeds = tuple(divided(*pair) for pair in zip(tops, bottoms, strict=True))
    return Measured(divided(top, bottom), seeds, text)


def divided(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def difference(ours: Sequence[float | None], theirs: Sequence[float | None], text: Text = points) -> Measured:
    """The mean of the differences between the same seeds.

    >>> str(difference([0.88, 0.86], [0.87, 0.87]))
    '+0.0 pt (-1.0 pt to +1.0 pt)'
    """
    pairs = zip(ours, theirs, strict=True)
    return over_seeds([None if a is None or b is None else a - b for a, b in pairs], text)
