"""What is shown of a job, from what its coordinator has said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.live.model import policy_words, view_of
from tests.live.statuses import arrival, status, worker


def test_speeds_are_differences() -> None:
    before = status(10.0, 200, workers=(worker(0, 150), worker(1, 50)))
    view = view_of(status(12.0, 500, workers=(worker(0, 250), worker(1, 250))), before)
    assert view.samples_per_s == 150.0
    assert [each.samples_per_s for each in view.workers] == [50.0, 100.0]


def test_without_an_earlier_answer_speeds_are_those_since_the_start() -> None:
    view = view_of(status(4.0, 200, workers=(worker(0, 200),)))
    assert (view.samples_per_s, view.workers[0].samples_per_s) == (50.0, 50.0)
    assert view_of(status()).samples_per_s == 0.0


def test_who_has_put_a_policy_in_force_is_said_with_it() -> None:
    view = view_of(status(policy="bsp", chosen="auto", switching_to="asp"))
    assert policy_words(view) == "bsp (by auto), switching to asp"
    assert policy_words(view_of(status(policy="bsp"))) == "bsp"


def test_a_worker_that_has_joined_meanwhile_begins_at_nothing() -> None:
    view = view_of(status(2.0, workers=(worker(1, 30),)), status(1.0))
    assert view.workers[0].samples_per_s == 30.0


def test_a_job_that_goes_back_has_no_negative_speed() -> None:
    assert view_of(status(2.0, 100), status(1.0, 400)).samples_per_s == 0.0


def test_samples_that_were_lost_or_made_again_are_shown() -> None:
    view = view_of(status(rolled_back=40, repeated=60))
    assert (view.rolled_back, view.repeated) == (40, 60)


def test_the_parts_of_a_step_are_those_of_the_latest_steps() -> None:
    before = status(1.0, arrivals={0: arrival(10, 0.1, 0.01, 0.0)}, workers=(worker(0),))
    now = status(2.0, arrivals={0: arrival(20, 0.2, 0.01, 0.05)}, workers=(worker(0),))
    shown = view_of(now, before).workers[0]
    assert shown.steps == 20
    assert shown.compute_s == pytest.approx(0.3)
    assert shown.wait_s == pytest.approx(0.1)


def test_progress_of_epoch_and_job() -> None:
    view = view_of(status(10.0, 1500, epoch=1, epochs=4))
    assert (view.epoch_share, view.share) == (0.5, 0.375)
    assert view.remaining_s == pytest.approx(2500 / 150)
    unplanned = view_of(status(10.0, 1500, epoch=1))
    assert (unplanned.epoch_share, unplanned.share, unplanned.remaining_s) == (0.5, None, None)
    longer = view_of(status(10.0, 4500, epoch=4, epochs=4))
    assert (longer.epoch_share, longer.share) == (0.5, None)


def test_staleness_is_of_gradients_and_lssr_of_replicas() -> None:
    before = status(staleness=(10, 0), staleness_sum=0)
    after = status(staleness=(10, 2, 2), staleness_sum=8)
    assert view_of(after, before).staleness == 2.0
    assert view_of(before, before).staleness == 0.0
    replicas = view_of(status(replicas=True, steps=8, local_steps=6, staleness=(1,), staleness_sum=0))
    assert (replicas.staleness, replicas.lssr) == (None, 0.75)


def test_what_workers_do() -> None:
    workers = (
        worker(0, running=True),
        worker(1),
        worker(2, at_end=True, running=True),
        worker(3, running=True),
    )
    view = view_of(status(members=(0, 1, 2), workers=workers))
    assert [each.activity for each in view.workers] == ["computing", "waiting", "at the end", "joining"]


def test_who_is_late_and_of_what_kind() -> None:
    arrivals = {0: arrival(9, 0.1, relative=2.1, late=True, kind="persistent"), 1: arrival(9, 0.1, kind="transient")}
    late, fine = view_of(status(arrivals=arrivals, workers=(worker(0), worker(1)))).workers
    assert (late.straggler, late.late, fine.straggler, fine.late) == ("persistent", 2.1, "transient", None)


@given(
    samples=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    times=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    epochs=st.none() | st.integers(0, 5),
    epoch=st.integers(-1, 6),
    dataset=st.integers(0, 10**6),
)
def test_no_answer_makes_an_impossible_figure(
    samples: tuple[int, int], times: tuple[float, float], epochs: int | None, epoch: int, dataset: int
) -> None:
    more = {"epochs": epochs, "epoch": epoch, "dataset_samples": dataset}
    before, now = (status(t, s, workers=(worker(0, s),), **more) for t, s in zip(times, samples, strict=True))
    view = view_of(now, before)
    assert 0.0 <= view.epoch_share <= 1.0
    assert view.share is None or 0.0 <= view.share <= 1.0
    assert 0.0 <= view.samples_per_s < math.inf
    assert all(each.samples_per_s >= 0.0 for each in view.workers)
