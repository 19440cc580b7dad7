"""A timeline in the trace event format that Perfetto (ui.perfetto.dev) and Chrome's about:tracing open.

One process for the policy; in it one track for the updates, one for each worker, and a counter of the staleness of
arriving gradients. Times are microseconds. Format: "Trace Event Format", Chromium project, 2016.
"""

from collections.abc import Iterator
from typing import Any

from polyrhythm.report.timeline import KINDS, Span, Timeline, TimelineArrival, Update

PROCESS = 1
UPDATES = 0
"""Track of the updates; worker p has track p + 1."""


def to_perfetto(timeline: Timeline) -> dict[str, Any]:
    events = [
        *names(timeline),
        *(slice_of(span) for span in timeline.spans),
        *(instant(update) for update in timeline.updates),
        *(counter(arrival) for arrival in timeline.arrivals),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"policy": timeline.policy}}


def names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield metadata("process_name", UPDATES, {"name": timeline.policy})
    tracks = {UPDATES: "updates"} | {worker + 1: f"worker {worker}" for worker in timeline.workers}
    for track, name in tracks.items():
        yield metadata("thread_name", track, {"name": name})
        yield metadata("thread_sort_index", track, {"sort_index": track})


def metadata(name: str, track: int, args: dict[str, str | int]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": track, "args": args}


def slice_of(span: Span) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": KINDS[span.kind],
        "cat": span.kind,
        "pid": PROCESS,
        "tid": span.worker + 1,
        "ts": microseconds(span.start_s),
        "dur": microseconds(span.end_s - span.start_s),
    }


def instant(update: Update) -> dict[str, Any]:
    sync = update.sync
    args: dict[str, Any] = {"workers": list(sync.workers)}
    if sync.weights is not None:
        args["weights"] = list(sync.weights)
    return {
        "ph": "i",
        "s": "t",
        "name": f"combine {sync.what}",
        "cat": "sync",
        "pid": PROCESS,
        "tid": UPDATES,
        "ts": microseconds(update.time_s),
        "args": args,
    }


def counter(arrival: TimelineArrival) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": "staleness",
        "pid": PROCESS,
        "tid": UPDATES,
        "ts": microseconds(arrival.time_s),
        "args": {"updates": arrival.staleness},
    }


def microseconds(seconds: float) -> float:
    """Rounded to the nanosecond, as the viewers keep times."""
    return round(seconds * 1e6, 3)
