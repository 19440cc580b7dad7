"""A timeline as a small static picture for light and for dark backgrounds; the same input gives equal bytes."""

from collections.abc import Iterator, Sequence
from html import escape

from polyrhythm.report.palette import NEUTRAL, look
from polyrhythm.report.timeline import KINDS, Span, SpanKind, Timeline

WIDTH = 760
LEFT = 70
RIGHT = 12
ROW = 18
TITLE = 26
AXIS = 24
LEGEND = 24
TICKS = 8
"""Pixels, but for the number of ticks on the axis, which is at most this."""

BAR: dict[SpanKind, tuple[int, float]] = {
    "compute": (12, 1.0),
    "transfer": (12, 0.45),
    "wait": (2, 1.0),
    "lost": (4, 0.6),
}
"""Height and opacity of a bar; waiting is drawn in gray, the rest in the colour of the policy."""


def timeline_svg(timelines: Sequence[Timeline], titles: Sequence[str] | None = None, colour: int = 0) -> str:
    """The timelines above each other on one time axis, with a legend.

    Args:
        timelines: one or more.
        titles: a line above each; the specs of the policies if not given.
        colour: index of the first policy in the palette; the others follow.
    """
    end_s = max(timeline.end_s for timeline in timelines)
    body: list[str] = []
    top = 0
    for position, timeline in enumerate(timelines):
        title = titles[position] if titles else timeline.policy
        body += panel(timeline, title, look(colour + position).colour, top, end_s)
        top += TITLE + ROW * len(timeline.workers)
    body += axis(top, end_s)
    kinds = {span.kind for timeline in timelines for span in timeline.spans}
    body += legend(top + AXIS, [kind for kind in KINDS if kind in kinds], look(colour).colour)
    names = ", ".join(titles or [timeline.policy for timeline in timelines])
    return "\n".join([*opening(top + AXIS + LEGEND, f"Who ran and who waited under {names}"), *body, "</svg>\n"])


def opening(height: int, title: str) -> list[str]:
    """The root element and its accessible name."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{NEUTRAL}">',
        f"<title>{escape(title)}</title>",
    ]


def panel(timeline: Timeline, title: str, colour: str, top: int, end_s: float) -> Iterator[str]:
    """One policy: its title and a row for each worker."""
    yield f'<text x="{LEFT}" y="{top + 17}" font-size="13" font-weight="600">{escape(title)}</text>'
    rows = {worker: top + TITLE + ROW * row + ROW // 2 for row, worker in enumerate(timeline.workers)}
    for worker, middle in rows.items():
        yield f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">worker {worker}</text>'
    for kind in BAR:
        spans = [span for span in timeline.spans if span.kind == kind]
        yield from bars(kind, spans, rows, colour, end_s)


def bars(kind: SpanKind, spans: Sequence[Span], rows: dict[int, int], colour: str, end_s: float) -> Iterator[str]:
    """The spans of one kind as one path of rectangles."""
    if not spans:
        return
    height, opacity = BAR[kind]
    outlines = []
    for span in spans:
        left, right = position(span.start_s, end_s), position(span.end_s, end_s)
        # A gap parts a step from the next one, where nothing else does.
        right -= min(0.8, (right - left) / 4)
        outlines.append(f"M{left:.1f} {rows[span.worker] - height // 2}H{right:.1f}v{height}H{left:.1f}z")
    fill = NEUTRAL if kind == "wait" else colour
    yield f'<path fill="{fill}" fill-opacity="{opacity}" d="{"".join(outlines)}"/>'


def position(time_s: float, end_s: float) -> float:
    """Horizontal place of a moment."""
    return LEFT + (WIDTH - LEFT - RIGHT) * time_s / end_s


def axis(top: int, end_s: float) -> Iterator[str]:
    """Ticks at round seconds."""
    yield f'<path stroke="{NEUTRAL}" d="M{LEFT} {top + 4}H{WIDTH - RIGHT}"/>'
    step = round_step(end_s)
    for index in range(int(end_s / step + 1e-9) + 1):
        x = position(index * step, end_s)
        anchor = "end" if x > WIDTH - 40 else "middle"
        yield f'<text x="{x:.1f}" y="{top + 19}" text-anchor="{anchor}">{index * step:g} s</text>'


def round_step(end_s: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that gives at most `TICKS` steps.

    >>> round_step(12.0), round_step(0.7), round_step(40)
    (2.0, 0.1, 5.0)
    """
    power = -9
    while True:
        for factor in (1, 2, 5):
            step = float(f"{factor}e{power}")
            if end_s / step <= TICKS:
                return step
        power += 1


def legend(top: int, kinds: Sequence[SpanKind], colour: str) -> Iterator[str]:
    """What the bars mean."""
    x = LEFT
    for kind in kinds:
        height, opacity = BAR[kind]
        fill = NEUTRAL if kind == "wait" else colour
        y = top + 12 - height // 2
        yield f'<rect x="{x}" y="{y}" width="24" height="{height}" fill="{fill}" fill-opacity="{opacity}"/>'
        yield f'<text x="{x + 30}" y="{top + 16}">{KINDS[kind]}</text>'
        x += 44 + 8 * len(KINDS[kind])
