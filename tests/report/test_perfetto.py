import json
from itertools import pairwise

import pytest

from polyrhythm.core import Trace
from polyrhythm.report.perfetto import to_perfetto
from polyrhythm.report.timeline import KINDS, Timeline

FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"ph", "name", "cat", "pid", "tid", "ts", "s", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}
"""Fields that the viewers need, by phase."""


@pytest.mark.parametrize("name", ["bsp_trace", "cancelling_trace"])
def test_every_event_has_the_fields_of_its_phase(name: str, request: pytest.FixtureRequest) -> None:
    timeline = Timeline.of(request.getfixturevalue(name))
    value = to_perfetto(timeline)
    assert json.loads(json.dumps(value)) == value
    for event in value["traceEvents"]:
        assert set(event) == FIELDS[event["ph"]]
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0
    phases = [event["ph"] for event in value["traceEvents"]]
    assert phases.count("X") == len(timeline.spans)
    assert phases.count("i") == len(timeline.updates)
    assert phases.count("C") == len(timeline.arrivals)


def test_tracks_are_named_and_their_slices_do_not_overlap(bsp_trace: Trace) -> None:
    events = to_perfetto(Timeline.of(bsp_trace))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "updates", 1: "worker 0", 2: "worker 1", 3: "worker 2"}
    for track in (1, 2, 3):
        slices = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == track)
        assert all(start + length <= after for (start, length), (after, _) in pairwise(slices))


def test_times_are_microseconds_and_updates_say_what_they_combined(bsp_trace: Trace) -> None:
    events = to_perfetto(Timeline.of(bsp_trace))["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert (first["ts"], first["dur"], first["name"]) == (0.0, 1e6, KINDS["compute"])
    update = next(event for event in events if event["ph"] == "i")
    assert (update["ts"], update["name"], update["args"]) == (3e6, "combine gradients", {"workers": [0, 1, 2]})
