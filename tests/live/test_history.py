"""Stretches of time in which workers computed, transferred and waited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.live.history import KEPT_EVENTS, KEPT_FRAMES, JobHistory, stretches_of
from polyrhythm.runtime.wire.control_protocol import EventKind, JobEvent
from tests.live.statuses import arrival, event, status, worker


def test_a_stretch_has_the_shares_of_the_steps_in_it() -> None:
    before = status(2.0, arrivals={0: arrival(2, 0.5, 0.1)}, workers=(worker(0, reported_s=1.0),))
    now = status(4.0, arrivals={0: arrival(4, 0.5, 0.1)}, workers=(worker(0, reported_s=3.0),))
    assert stretches_of(now, before) == ((0, 1.0, 3.0, 0.5, 0.1),)


def test_a_worker_without_a_new_step_has_none() -> None:
    before = status(2.0, arrivals={0: arrival(2, 0.5)}, workers=(worker(0, reported_s=1.0), worker(1)))
    now = status(4.0, arrivals={0: arrival(2, 0.5)}, workers=(worker(0, reported_s=1.0), worker(1), worker(2)))
    assert stretches_of(now, before) == ()


@given(
    steps=st.integers(1, 1000),
    parts=st.tuples(st.floats(0, 10), st.floats(0, 10)),
    elapsed_s=st.floats(0.01, 100),
)
def test_shares_never_exceed_the_time(steps: int, parts: tuple[float, float], elapsed_s: float) -> None:
    before = status(arrivals={0: arrival(5, *parts)}, workers=(worker(0, reported_s=0.0),))
    now = status(arrivals={0: arrival(5 + steps, *parts)}, workers=(worker(0, reported_s=elapsed_s),))
    for _, from_s, to_s, compute, transfer in stretches_of(now, before):
        assert from_s < to_s
        assert min(compute, transfer) >= 0.0
        assert compute + transfer <= 1.001


def test_frames_and_events_are_bounded() -> None:
    history = JobHistory()
    for look in range(2 * KEPT_FRAMES):
        history.see(status(float(look), look, events=(event(look + 1),)))
    assert len(history.frames) == KEPT_FRAMES
    assert len(history.events) == KEPT_EVENTS
    assert [frame.number for frame in history.after(2 * KEPT_FRAMES - 2)] == [599, 600]


def test_events_are_new_once() -> None:
    history = JobHistory()
    assert history.see(status(events=(event(1), event(2)))) == (event(1), event(2))
    assert history.see(status(events=(event(2), event(3)))) == (event(3),)
    assert history.last_event == 3
    assert history.view is not None
    assert [each.number for each in history.view.events] == [1, 2, 3]


def test_the_speed_is_that_of_several_looks() -> None:
    history = JobHistory()
    for look in range(30):
        history.see(status(look * 0.5, 100 * (look // 4)))
    assert history.frames[-1].samples_per_s == pytest.approx(50.0, rel=0.3)


def test_a_job_whose_coordinator_is_gone_keeps_its_last_word() -> None:
    history = JobHistory()
    history.end("nobody")
    history.see(status(ended="finished"))
    history.end("the coordinator is gone")
    assert history.view is not None
    assert history.view.ended == "finished"


def test_at_the_end_those_are_shown_who_have_worked_until_then() -> None:
    history = JobHistory()
    history.see(status(1.0, workers=(worker(0, 5), worker(1, 6), worker(2, 7))))
    history.see(status(2.0, workers=(worker(0, 8),), events=(JobEvent(1, 1.5, "death", "rank 2 died", 2),)))
    history.see(status(3.0, ended="finished"))
    assert history.view is not None
    assert [(each.rank, each.samples, each.activity) for each in history.view.workers] == [
        (0, 8, "at the end"),
        (1, 6, "at the end"),
    ]


@pytest.mark.parametrize(("kind", "shown"), [("death", [0]), ("left", [0]), ("straggler", [0, 1])])
def test_at_the_end_those_are_shown_who_were_there_until_then(kind: EventKind, shown: list[int]) -> None:
    history = JobHistory()
    history.see(status(1.0, workers=(worker(0), worker(1))))
    history.see(status(2.0, workers=(worker(0),), events=(JobEvent(1, 1.5, kind, "rank 1", 1),)))
    history.see(status(3.0, ended="finished"))
    assert history.view is not None
    assert [each.rank for each in history.view.workers] == shown


def test_what_was_before_the_job_began_is_no_part_of_its_curves() -> None:
    history = JobHistory()
    history.see(status(7.0, phase=0, epoch=-1))
    history.see(status(0.5, 100))
    history.see(status(1.0, 200))
    assert [frame.time_s for frame in history.frames] == [0.5, 1.0]
    assert history.view is not None
    assert history.view.samples_per_s == 200.0
