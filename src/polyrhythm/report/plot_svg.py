"""Lines and bars as a small static picture for light and dark backgrounds; the same input gives equal bytes."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

from polyrhythm.report.palette import NEUTRAL, look

WIDTH = 760
LEFT, RIGHT, TOP = 64, 12, 10
PLOT = 260
AXIS = 44
LEGEND = 20
TICKS = 6
DASHES = {"solid": "", "dash": ' stroke-dasharray="7 4"', "dot": ' stroke-dasharray="2 3"'}


class Line(NamedTuple):
    """A name and its points; x are numbers, or for bars positions in the list of categories."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Scale(NamedTuple):
    """Values from `low` to `high` on pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        low, high, at = (self.low, self.high, value)
        if self.log:
            low, high, at = log10(low), log10(high), log10(max(value, self.low))
        return self.start + (self.stop - self.start) * (at - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values inside the scale."""
        if self.log:
            return [10.0**power for power in range(ceil(log10(self.low)), floor(log10(self.high)) + 1)]
        step = round_step((self.high - self.low) / TICKS)
        return [step * index for index in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def lines_svg(title: str, labels: tuple[str, str], lines: Sequence[Line], *, log_x: bool = False) -> str:
    """Lines over a number.

    Args:
        title: for who cannot see it.
        labels: of the axes.
        lines: at least one point between them; points that are not finite are left out.
        log_x: a logarithmic scale, on which only positive x are drawn.
    """
    lines = [drawable(line, log_x) for line in lines]
    xs, ys = [x for line in lines for x in line.x], [y for line in lines for y in line.y]
    across = Scale(*margins(xs, 0.0, log_x), LEFT, WIDTH - RIGHT, log_x)
    up = Scale(*margins(ys, 0.04, False), TOP + PLOT, TOP)
    body = [*grid(up), *axis_x(across), *curves(lines, across, up)]
    return framed(title, labels, [line.name for line in lines], body)


def bars_svg(title: str, labels: tuple[str, str], categories: Sequence[str], groups: Sequence[Line]) -> str:
    """Groups of bars over categories, from zero up."""
    up = Scale(0.0, max(max(group.y) for group in groups) * 1.04 or 1.0, TOP + PLOT, TOP)
    slot = (WIDTH - LEFT - RIGHT) / len(categories)
    body = [*grid(up)]
    for index, category in enumerate(categories):
        body.append(text(LEFT + slot * (index + 0.5), TOP + PLOT + 17, category))
    thickness = slot * 0.8 / len(groups)
    for number, group in enumerate(groups):
        for index, value in enumerate(group.y):
            left, top = LEFT + slot * (index + 0.1) + thickness * number, up(value)
            body.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{thickness * 0.92:.1f}" height="{TOP + PLOT - top:.1f}" '
                f'fill="{look(number).colour}" fill-opacity="{1 - 0.3 * (number >= 5):.1f}"/>'
            )
    return framed(title, labels, [group.name for group in groups], body)


def drawable(line: Line, log_x: bool) -> Line:
    """The line without points that no scale has."""
    pairs = zip(line.x, line.y, strict=True)
    points = [(x, y) for x, y in pairs if isfinite(x) and isfinite(y) and (x > 0 or not log_x)]
    return Line(line.name, [x for x, _ in points], [y for _, y in points])


def margins(values: Sequence[float], share: float, log: bool) -> tuple[float, float]:
    """Least and greatest value, with a margin, never equal."""
    low, high = min(values), max(values)
    if log:
        return low, high if high > low else low * 10
    margin = (high - low) * share or (0.0 if high > low else abs(high) or 1.0)
    return low - margin, high + margin


def curves(lines: Sequence[Line], across: Scale, up: Scale) -> Iterator[str]:
    """One path a line."""
    for index, line in enumerate(lines):
        colour, dash, _ = look(index)
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2"{DASHES[dash]} points="{points}"/>'


def grid(up: Scale) -> Iterator[str]:
    """Ticks of the vertical axis with a faint line each."""
    for tick in up.ticks:
        y = up(tick)
        yield f'<path stroke="{NEUTRAL}" stroke-opacity="0.25" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield text(LEFT - 6, y + 4, f"{tick:.6g}", "end")


def axis_x(across: Scale) -> Iterator[str]:
    """Ticks of the horizontal axis."""
    yield f'<path stroke="{NEUTRAL}" d="M{LEFT} {TOP + PLOT}H{WIDTH - RIGHT}"/>'
    for tick in across.ticks:
        x = across(tick)
        yield text(x, TOP + PLOT + 17, f"{tick:,.6g}", "end" if x > WIDTH - 40 else "middle")


def framed(title: str, labels: tuple[str, str], names: Sequence[str], body: Sequence[str]) -> str:
    """The picture: what is drawn, the labels of the axes, and a legend."""
    rows = list(legend_rows(names))
    height = TOP + PLOT + AXIS + LEGEND * len(rows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{NEUTRAL}">'
    )
    middle = TOP + PLOT / 2
    marks = [
        text((LEFT + WIDTH - RIGHT) / 2, TOP + PLOT + 35, labels[0]),
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>',
    ]
    legend = [
        part for row, entries in enumerate(rows) for part in entry_marks(entries, TOP + PLOT + AXIS + LEGEND * row)
    ]
    return "\n".join([head, f"<title>{escape(title)}</title>", *body, *marks, *legend, "</svg>\n"])


def legend_rows(names: Sequence[str]) -> Iterator[list[tuple[int, float, str]]]:
    """Entries (index, x, name) of the legend, row by row."""
    row: list[tuple[int, float, str]] = []
    x = float(LEFT)
    for index, name in enumerate(names):
        width = 44 + 6.6 * len(name)
        if row and x + width > WIDTH:
            yield row
            row, x = [], float(LEFT)
        row.append((index, x, name))
        x += width
    yield row


def entry_marks(entries: Sequence[tuple[int, float, str]], top: float) -> Iterator[str]:
    """A row of the legend."""
    for index, x, name in entries:
        colour, dash, _ = look(index)
        yield f'<path stroke="{colour}" stroke-width="3"{DASHES[dash]} d="M{x:.0f} {top + 8:.0f}h24"/>'
        yield text(x + 30, top + 12, name, "start")


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `least`.

    >>> round_step(0.13), round_step(3.0)
    (0.2, 5.0)
    """
    power = 10.0 ** floor(log10(least))
    return next(float(f"{factor * power:.6g}") for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
