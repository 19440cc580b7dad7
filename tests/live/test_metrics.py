"""Metrics: names and labels as Prometheus wants them, values as the coordinator has said."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from polyrhythm.live.metrics import exposition
from polyrhythm.runtime.wire.control_protocol import Status
from tests.live.statuses import arrival, status, worker


def read(
    now: Status | None, at_s: float = 1000.0, **events: int
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition(now, at_s, events).decode()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


FULL = status(
    20.0,
    640,
    loss=0.5,
    figures={"accuracy": 0.75},
    switches=2,
    staleness=(4, 3, 2, 0),
    staleness_sum=7,
    applied=9,
    dropped={"left": 1, "cancelled": 2},
    workers=(worker(0, 320, 19.0, running=True, sent=9e6), worker(1, 320, 18.0, leaving=True)),
    arrivals={0: arrival(10, 0.2, 0.1, 0.3, kind="transient"), 1: arrival(5, 0.4)},
)


def test_values_are_those_of_the_job() -> None:
    found = read(FULL, death=1)
    assert found["polyrhythm_up", ()] == 1.0
    assert found["polyrhythm_policy_info", (("policy", "asp"),)] == 1.0
    assert found["polyrhythm_step_seconds_total", (("part", "wait"), ("rank", "0"))] == pytest.approx(3.0)
    assert found["polyrhythm_gradients_total", (("fate", "dropped"),)] == 3.0
    assert found["polyrhythm_workers", (("state", "computing"),)] == 1.0
    assert found["polyrhythm_last_step_timestamp_seconds", ()] == 999.0
    assert found["polyrhythm_straggler", (("kind", "transient"), ("rank", "0"))] == 0.0
    assert found["polyrhythm_events_total", (("kind", "death"),)] == 1.0
    assert found["polyrhythm_switches_total", ()] == 2.0
    assert found["polyrhythm_reported", (("name", "accuracy"),)] == 0.75
    assert found["polyrhythm_bytes_total", (("direction", "sent"), ("rank", "0"))] == 9e6
    assert found["polyrhythm_workers", (("state", "leaving"),)] == 1.0


def test_staleness_is_a_histogram() -> None:
    found = read(FULL)
    buckets = {labels[0][1]: value for (name, labels), value in found.items() if name.endswith("updates_bucket")}
    assert buckets == {"0.0": 4.0, "1.0": 7.0, "3.0": 9.0, "+Inf": 9.0}
    assert (found["polyrhythm_staleness_updates_count", ()], found["polyrhythm_staleness_updates_sum", ()]) == (
        9.0,
        7.0,
    )


def test_a_job_of_which_nothing_is_known_is_down() -> None:
    assert read(None) == {("polyrhythm_up", ()): 0.0}
    assert read(status(ended="finished"))["polyrhythm_up", ()] == 0.0


def test_labels_do_not_grow() -> None:
    names = {name for _, labels in read(FULL, death=1) for name, _ in labels}
    assert names == {"policy", "rank", "part", "fate", "state", "kind", "le", "direction", "name"}
