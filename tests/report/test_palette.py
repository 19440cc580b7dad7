from itertools import combinations

import pytest

from polyrhythm.report.palette import COLOURS, NEUTRAL, look, looks


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#14171c", "#0d1117"])
@pytest.mark.parametrize("colour", [*COLOURS, NEUTRAL])
def test_every_colour_reads_on_light_and_dark(colour: str, background: str) -> None:
    assert contrast(colour, background) >= 3


def test_fifteen_policies_look_different() -> None:
    for one, other in combinations(map(look, range(15)), 2):
        assert (one.colour, one.dash) != (other.colour, other.dash)


def test_a_policy_keeps_its_look_when_it_is_named_again() -> None:
    assert looks(["bsp", "asp", "bsp"]) == looks(["bsp", "asp"])
