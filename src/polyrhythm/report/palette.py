"""One look for each policy, the same in every figure, readable on light and dark backgrounds."""

from collections.abc import Iterable
from typing import NamedTuple

# Okabe and Ito (2008) without the colours that vanish on white, and a violet. Each keeps a contrast of 3:1 on both
# backgrounds, and any two differ by a Delta E of at least 16 for the three kinds of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8F3CFD")
DASHES = ("solid", "dash", "dot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star", "hexagon", "x", "triangle-down", "pentagon")

NEUTRAL = "#767676"
"""Waiting, axes and text of pictures that cannot know their background."""


class Look(NamedTuple):
    """How a policy is drawn: no two of the first fifteen share both colour and dash."""

    colour: str
    dash: str
    symbol: str


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """A look for each policy, in the order given.

    >>> looks(["bsp", "asp"])["asp"]
    Look(colour='#D55E00', dash='solid', symbol='square')
    """
    return {policy: look(index) for index, policy in enumerate(dict.fromkeys(policies))}


def look(index: int) -> Look:
    """The `index`-th look; colours come round first."""
    round_, colour = divmod(index, len(COLOURS))
    return Look(COLOURS[colour], DASHES[round_ % len(DASHES)], SYMBOLS[index % len(SYMBOLS)])


def faded(colour: str, opacity: float) -> str:
    """A hex colour as rgba().

    >>> faded("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
