"""A figure of the page as a static SVG for light and dark backgrounds; the same input gives equal bytes.

plotly draws a figure in a browser; a file is drawn by matplotlib, from the same figure. It knows what our figures use:
lines, markers with words, groups of bars, and plots above each other.
"""

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from polyrhythm.errors import UsageError
from polyrhythm.report.palette import NEUTRAL

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PLOT = 760, 270
MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
LEGEND = 22
"""Pixels; a row of the legend is as high as `LEGEND`."""

DASHES = {"solid": "", "dash": "7,4", "dot": "2,3"}
MARKERS = {"circle": "o", "square": "s"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # words stay words, for who searches or hears them
    "svg.hashsalt": "polyrhythm",
    "text.parse_math": False,
    "path.simplify": False,
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "butt",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so every machine measures alike
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": NEUTRAL,
    "axes.labelcolor": NEUTRAL,
    "axes.edgecolor": NEUTRAL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "grid.color": NEUTRAL,
    "grid.alpha": 0.25,
    "text.color": NEUTRAL,
    "legend.frameon": False,
}


def check_pictures(option: str) -> None:
    """Whether pictures can be drawn, asked before a long run."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"{option} needs matplotlib; run: pip install 'polyrhythm[pictures]'")


def svg(figure: "go.Figure", title: str) -> str:
    """The figure as a file."""
    check_pictures("an SVG picture")
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        file = StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn(figure).savefig(file, format="svg", transparent=True, metadata={"Title": title, **nothing})
    return re.sub(r'<svg (.*?width="\d+)pt(" height="\d+)pt', r'<svg role="img" \1\2', file.getvalue(), count=1)


def drawn(figure: "go.Figure") -> "Figure":
    """The figure on a canvas of 72 pixels an inch, so that a point of matplotlib is a pixel of plotly."""
    from matplotlib.figure import Figure

    margin = MARGIN | figure.layout.margin.to_plotly_json()
    columns, rows = legend_grid([trace.name for trace in figure.data], WIDTH - margin["l"])
    inner = figure.layout.height - margin["t"] - margin["b"] if figure.layout.height else PLOT
    below = margin["b"] + LEGEND * rows
    height = margin["t"] + inner + below
    canvas = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    for name in dict.fromkeys(trace.yaxis or "y" for trace in figure.data):
        low, high = axis(figure, name).domain or (0, 1)
        across, up = (WIDTH - margin["l"] - margin["r"]) / WIDTH, inner * (high - low) / height
        draw_plot(canvas.add_axes((margin["l"] / WIDTH, (below + inner * low) / height, across, up)), figure, name)
    for plot, title in zip(canvas.axes, figure.layout.annotations, strict=False):
        plot.set_title(title.text)
    add_legend(canvas, columns, margin["l"] / WIDTH)
    return canvas


def legend_grid(names: Sequence[str | None], width: float) -> tuple[int, int]:
    """Columns and rows of a legend of these names.

    >>> legend_grid(["bsp", "asp", "bsp", None], 600)
    (8, 1)
    """
    known = {name for name in names if name}
    columns = max(1, int(width / (48 + 7 * max(map(len, known), default=0))))
    return columns, -(-len(known) // columns)


def add_legend(canvas: "Figure", columns: int, left: float) -> None:
    """Each name once, below everything."""
    entries: dict[str, Any] = {}
    for plot in canvas.axes:
        handles, names = plot.get_legend_handles_labels()
        entries = dict(zip(names, handles, strict=True)) | entries
    if entries:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (left, 0), "borderaxespad": 0, "borderpad": 0.2}
        canvas.legend([*entries.values()], [*entries], ncols=columns, columnspacing=1.5, **place)


def axis(figure: "go.Figure", name: str) -> Any:
    """Layout of an axis, as a trace names it.

    >>> import plotly.graph_objects as go
    >>> axis(go.Figure(layout={"xaxis2": {"type": "log"}}), "x2").type
    'log'
    """
    return figure.layout[f"{name[0]}axis{name[1:]}"]


def draw_plot(plot: "Axes", figure: "go.Figure", name: str) -> None:
    """All traces over one vertical axis."""
    traces = [trace for trace in figure.data if (trace.yaxis or "y") == name]
    bars = [trace for trace in traces if trace.type == "bar"]
    for index, trace in enumerate(bars):
        add_bars(plot, trace, index, len(bars))
    for trace in traces:
        if trace.type == "scatter":
            add_line(plot, trace)
    shape_axis(plot, "x", axis(figure, traces[0].xaxis or "x"))
    shape_axis(plot, "y", axis(figure, name))


def add_bars(plot: "Axes", trace: "go.Bar", index: int, groups: int) -> None:
    places = range(len(trace.x))
    width = 0.8 / groups
    offset = width * (index - (groups - 1) / 2)
    plot.bar([place + offset for place in places], trace.y, width * 0.92, color=trace.marker.color, label=trace.name)
    plot.set_xticks(places, trace.x)


def add_line(plot: "Axes", trace: "go.Scatter") -> None:
    """A line, or markers with words below them."""
    style: dict[str, Any] = {"linestyle": "none"}
    if "lines" in (trace.mode or "lines"):
        style = {"linestyle": dashes(trace.line.dash), "color": paint(trace.line.color), "linewidth": trace.line.width}
    if "markers" in (trace.mode or ""):
        marker = trace.marker
        style |= {"marker": MARKERS[marker.symbol], "color": marker.color, "markersize": marker.size}
    plot.plot(trace.x, trace.y, label=trace.name, **style)
    if "text" in (trace.mode or ""):
        for x, y, words in zip(trace.x, trace.y, trace.text, strict=True):
            plot.annotate(words, (x, y), (0, -9), textcoords="offset points", ha="center", va="top", fontsize=9)


def shape_axis(plot: "Axes", way: Literal["x", "y"], layout: Any) -> None:
    here = getattr(plot, f"{way}axis")
    if layout.type == "log":
        getattr(plot, f"set_{way}scale")("log", nonpositive="mask")
        here.set_minor_formatter("")
    if layout.tickvals is not None:
        here.set_ticks(layout.tickvals, layout.ticktext)
    elif not (plot.containers and way == "x"):
        here.set_major_formatter(tick_text(layout.tickformat))
    if layout.range is not None:
        plot.set(**{f"{way}lim": layout.range})
    plot.set(**{f"{way}label": layout.title.text or ""})
    plot.grid(way == "y" and layout.showgrid is not False, axis=way)


def tick_text(tickformat: str | None) -> Callable[[float, int], str]:
    """How a tick is written.

    >>> tick_text(".0%")(0.875, 0), tick_text(None)(12000.0, 0)
    ('87.5 %', '12,000')
    """
    return (lambda value, _: f"{100 * value:.6g} %") if tickformat == ".0%" else lambda value, _: f"{value:,.6g}"


def dashes(dash: str | None) -> Any:
    """A line style of plotly in matplotlib's words.

    >>> dashes("solid"), dashes("dash"), dashes("2px,2px")
    ('solid', (0, (7.0, 4.0)), (0, (2.0, 2.0)))
    """
    dash = dash or "solid"
    lengths = DASHES.get(dash, dash).replace("px", "")
    return (0, tuple(map(float, lengths.split(",")))) if lengths else "solid"


def paint(colour: str) -> Any:
    """A colour of plotly in matplotlib's words.

    >>> paint("#0072B2"), paint("rgba(255,0,51,0.5)")
    ('#0072B2', (1.0, 0.0, 0.2, 0.5))
    """
    if not colour.startswith("rgba"):
        return colour
    *rgb, opacity = map(float, colour[5:-1].split(","))
    return *(part / 255 for part in rgb), opacity
