"""The timeline, on the page and as a picture: who ran and who waited, every policy on one time axis (RLP, Fig. 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from polyrhythm.report.figures import Chart, listing
from polyrhythm.report.palette import NEUTRAL, Look, faded, look
from polyrhythm.report.picture import svg
from polyrhythm.report.timeline import KINDS, Span, SpanKind, Timeline, common_window
from polyrhythm.telemetry.numbers import count, number, percent

ROW_PX = 18
"""Height of one worker."""

WORKERS = 32
"""Most workers shown of a policy."""

SPANS = 24_000
"""Most spans on a page, all policies together: some 2 MB."""

GAP = 0.001
"""Share of the time in view that parts two spans."""

FIRST_VIEW = 400
"""Spans of the busiest policy before the reader zooms out."""


def timeline_chart(timelines: Sequence[Timeline], looks: Mapping[str, Look]) -> Chart:
    """The timelines above each other; a long run is cut to a window, the same for all, and the description says so."""
    workers = max(len(timeline.workers) for timeline in timelines)
    shown = shown_part(timelines)
    window_s = common_window(shown, FIRST_VIEW)
    figure = timeline_figure(shown, window_s, [looks[timeline.policy].colour for timeline in shown])
    shares = {timeline.policy: kind_shares(timeline) for timeline in shown}
    return Chart(
        key="timeline",
        title="Who ran and who waited",
        description=f"{describe_window(shown, workers)} One row a worker: a thick bar while it computes, a paler one "
        "while it transfers, a thin gray line while it waits, a dotted line for work that was thrown away. "
        + listing({policy: f"waits {percent(share['wait'])} of the time shown" for policy, share in shares.items()})
        + " Drag sideways to zoom in, double-click to zoom out.",
        figure=figure,
        headings=("policy", *KINDS.values()),
        rows=[[policy, *map(percent, share.values())] for policy, share in shares.items()],
        wide=True,
    )


def timeline_svg(timelines: Sequence[Timeline], titles: Sequence[str] | None = None) -> str:
    """The whole timelines as a static picture."""
    names = titles or [timeline.policy for timeline in timelines]
    colours = [look(index).colour for index in range(len(timelines))]
    figure = timeline_figure(timelines, common_window(timelines), colours, names)
    return svg(figure, f"Who ran and who waited under {', '.join(names)}")


def timeline_figure(
    timelines: Sequence[Timeline], window_s: float, colours: Sequence[str], titles: Sequence[str] | None = None
) -> go.Figure:
    """One plot a timeline, of which the first `window_s` seconds are in view."""
    figure = rows_of_axes(timelines, titles)
    for position, (timeline, colour) in enumerate(zip(timelines, colours, strict=True), 1):
        add_timeline(figure, position, timeline, colour, window_s * GAP)
    figure.update_xaxes(range=[0, window_s])
    return figure


def shown_part(timelines: Sequence[Timeline]) -> list[Timeline]:
    """As many workers and as much time as a page can hold; the same time of every timeline."""
    narrowed = [timeline.until(timeline.end_s, WORKERS) for timeline in timelines]
    end_s = common_window(narrowed, SPANS // len(narrowed))
    return [timeline.until(end_s) for timeline in narrowed]


def describe_window(timelines: Sequence[Timeline], workers: int) -> str:
    if all(timeline.complete for timeline in timelines):
        return "The whole run of the first seed."
    end_s = max(timeline.end_s for timeline in timelines)
    shown = max(len(timeline.workers) for timeline in timelines)
    some = f" of {count(shown)} of {count(workers)} workers" if shown < workers else ""
    return f"The first {number(end_s)} s{some} of the first seed, since the whole run would be too much for a page."


def rows_of_axes(timelines: Sequence[Timeline], titles: Sequence[str] | None = None) -> go.Figure:
    """One plot a policy, each worker as high as in every other, zoomed together."""
    heights = [len(timeline.workers) for timeline in timelines]
    plots_px, gap_px = ROW_PX * sum(heights), 48
    inner_px = plots_px + gap_px * (len(timelines) - 1)
    figure = make_subplots(
        rows=len(timelines),
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=gap_px / inner_px if len(timelines) > 1 else 0,
        subplot_titles=titles or [timeline.policy for timeline in timelines],
    )
    margin = {"t": 32, "b": 48, "l": 84, "r": 16}
    figure.update_layout(height=inner_px + margin["t"] + margin["b"], margin=margin, showlegend=False, dragmode="zoom")
    figure.update_xaxes(showgrid=False, zeroline=False, showticklabels=True)
    figure.update_xaxes(title="time (s)", row=len(timelines))
    return figure


def add_timeline(figure: go.Figure, position: int, timeline: Timeline, colour: str, gap_s: float) -> None:
    styles: dict[SpanKind, dict[str, Any]] = {
        "compute": {"color": colour, "width": 12},
        "transfer": {"color": faded(colour, 0.45), "width": 12},
        "wait": {"color": NEUTRAL, "width": 2},
        "lost": {"color": colour, "width": 4, "dash": "2px,2px"},
    }
    for kind, style in styles.items():
        spans = [span for span in timeline.spans if span.kind == kind]
        if spans:
            add_kind(figure, position, spans, gap_s, KINDS[kind], style)
    name_rows(figure, position, timeline)


def name_rows(figure: go.Figure, position: int, timeline: Timeline) -> None:
    """Workers from top to bottom; zooming is a matter of time alone."""
    rows = timeline.workers
    figure.update_yaxes(
        tickvals=rows,
        ticktext=[f"worker {worker}" for worker in rows],
        range=[max(rows, default=0) + 0.7, min(rows, default=0) - 0.7],
        fixedrange=True,
        showgrid=False,
        zeroline=False,
        row=position,
    )


def add_kind(
    figure: go.Figure, position: int, spans: Sequence[Span], gap_s: float, does: str, style: Mapping[str, Any]
) -> None:
    """All spans of one kind as one line with gaps, which stays fast with thousands of them."""
    # A span ends a little early: nothing else parts a step from the next one.
    ends = [span.end_s - min(gap_s, (span.end_s - span.start_s) / 4) for span in spans]
    points = np.array([(span.start_s, end_s, np.nan) for span, end_s in zip(spans, ends, strict=True)]).ravel()
    texts = [text for span in spans for text in (f"{span.end_s - span.start_s:.4g} s", "", "")]
    texts[1::3] = texts[0::3]
    figure.add_scatter(
        x=points,
        y=np.repeat(np.array([span.worker for span in spans], dtype=np.int32), 3),
        text=texts,
        name=does,
        mode="lines",
        line={**style, "simplify": False},
        hovertemplate=f"worker %{{y}} {does} %{{text}}<extra></extra>",
        row=position,
        col=1,
    )


def kind_shares(timeline: Timeline) -> dict[SpanKind, float]:
    """Share of each kind in the time of all spans."""
    lengths: dict[SpanKind, float] = dict.fromkeys(KINDS, 0.0)
    for span in timeline.spans:
        lengths[span.kind] += span.end_s - span.start_s
    total = sum(lengths.values()) or 1.0
    return {kind: length / total for kind, length in lengths.items()}
