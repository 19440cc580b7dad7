"""Cost against success of search settings as a static picture, one panel a setup; the same input gives equal bytes."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from polyrhythm.report.palette import COLOURS, NEUTRAL

WIDTH = 760
LEFT, RIGHT, TOP, PLOT, BOTTOM = 70, 20, 34, 180, 56
PANEL = TOP + PLOT + BOTTOM
"""Pixels."""

GOOD, OTHER = COLOURS[1], COLOURS[0]
"""Settings that find the right answer in 99 % of all cases, and the others."""

SUCCESSFUL = 0.99


class Point(NamedTuple):
    """A setting: `cost` in BSP trainings, `success` a probability, `label` beside its marker."""

    cost: float
    success: float
    label: str
    recurring: bool


def tradeoff_svg(panels: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """Panels above each other: circles are new jobs, squares recurring ones."""
    height = PANEL * len(panels) + 24
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{NEUTRAL}">',
        "<title>What a search costs and how often it finds the right switch point</title>",
    ]
    for index, (name, points) in enumerate(panels):
        body += panel(name, points, PANEL * index)
    return "\n".join([*body, *legend(PANEL * len(panels)), "</svg>\n"])


def panel(name: str, points: Sequence[Point], top: int) -> Iterator[str]:
    """Axes and markers of one setup."""
    most = max(point.cost for point in points) * 1.05
    floor = top + TOP + PLOT
    yield f'<text x="{LEFT}" y="{top + 20}" font-size="13" font-weight="600">{escape(name)}</text>'
    yield f'<path stroke="{NEUTRAL}" fill="none" d="M{LEFT} {top + TOP}V{floor}H{WIDTH - RIGHT}"/>'
    for share in (0, 25, 50, 75, 100):
        y = floor - PLOT * share / 100
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>'
    for tick in range(0, int(most) + 1, max(1, round(most / 8))):
        yield f'<text x="{across(tick, most):.1f}" y="{floor + 16}" text-anchor="middle">{tick}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{floor + 34}" text-anchor="end">cost of the search, BSP trainings</text>'
    for point in points:
        yield from marker(point, across(point.cost, most), floor - PLOT * point.success)


def across(cost: float, most: float) -> float:
    """Horizontal place of a cost."""
    return LEFT + (WIDTH - LEFT - RIGHT) * cost / most


def marker(point: Point, x: float, y: float) -> Iterator[str]:
    """One setting and its label."""
    colour = GOOD if point.success >= SUCCESSFUL else OTHER
    yield shape(point.recurring, x, y, colour)
    yield f'<text x="{x:.1f}" y="{y + 17:.1f}" text-anchor="middle" font-size="10">{escape(point.label)}</text>'


def shape(recurring: bool, x: float, y: float, colour: str) -> str:
    """A square or a circle."""
    if recurring:
        return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'


def legend(top: int) -> Iterator[str]:
    """What the markers mean."""
    kinds = ((False, OTHER, "new job"), (True, OTHER, "recurring job"), (False, GOOD, "right in at least 99 %"))
    for index, (recurring, colour, text) in enumerate(kinds):
        x = LEFT + 160 * index
        yield shape(recurring, x, top + 10, colour)
        yield f'<text x="{x + 12}" y="{top + 14}">{text}</text>'
    yield f'<text x="{LEFT + 480}" y="{top + 14}">labels: BSP runs, runs per candidate</text>'
