"""A job that diverges, with workers in memory: it goes back and makes its epoch again, or ends for everyone."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyrhythm.core.workload import Workload
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.coordinator.rollback import UNSURE, Rollback
from polyrhythm.runtime.wire.protocol import Diverged, Ended, Ready
from tests.runtime.coordinator.test_coordinator import EPOCHS, policies, processed_once, seeds
from tests.runtime.fake_job import FakeJob, at_ticks


@given(
    seed=seeds,
    workers=st.integers(1, 4),
    samples=st.integers(20, 80),
    first=policies,
    ahead=st.integers(0, 2),
    diverge=st.integers(1, 200),
    switches=st.dictionaries(st.integers(1, 200), policies, max_size=1),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_every_sample_counts_once_in_what_is_kept(
    seed: int, workers: int, samples: int, first: str, ahead: int, diverge: int, switches: dict[int, str]
) -> None:
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead)
    events = at_ticks("switch", switches)
    job.run(events | {diverge: "diverge 0"})
    if any(worker.ended for worker in job.workers.values()):
        return  # the epoch was over when it was seen
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(2, 4),
    first=policies,
    diverge=st.integers(1, 100),
    kills=st.dictionaries(st.integers(1, 150), st.integers(0, 3), min_size=1, max_size=1),
    joins=st.lists(st.integers(1, 100), max_size=1),
)
@example(seed=0, workers=2, first="bsp", diverge=2, kills={39: 0}, joins=[])  # rank 0 told for all once
@settings(max_examples=60, derandomize=True, deadline=None)
def test_also_when_workers_die_or_join_meanwhile(
    seed: int, workers: int, first: str, diverge: int, kills: dict[int, int], joins: list[int]
) -> None:
    job = FakeJob(first, workers, 60, 3, EPOCHS, seed)
    events = {tick: f"kill {rank % workers}" for tick, rank in kills.items()}
    job.run(events | dict.fromkeys(joins, f"join {workers}") | {diverge: f"diverge {workers - 1}"})
    if not any(worker.ended for worker in job.workers.values()):
        processed_once(job)


def test_behind_it_the_job_is_under_bsp_and_knows_what_it_has_lost() -> None:
    job = FakeJob("asp", 2, 60, 3, EPOCHS, seed=1)
    job.run({12: "diverge 1"})
    assert [policy.spec for policy, _, _ in job.traces] == ["asp", "bsp"]
    state = job.coordinator.job
    assert 0 < state.rolled_back_samples <= 60
    assert state.samples == EPOCHS * 60
    assert state.trouble == "the loss of rank 1 is nan: went back to the start of epoch 0, and on under bsp"


def test_a_second_time_is_the_end() -> None:
    job = FakeJob("asp", 2, 60, 3, EPOCHS, seed=1)
    job.run({20: "diverge 1", 50: "diverge 0"})
    (reason,) = {worker.ended for worker in job.workers.values()}
    assert "the loss of rank 0 is nan: diverged after" in reason


@given(
    seed=seeds,
    workers=st.integers(1, 4),
    samples=st.integers(60, 160),
    ahead=st.integers(0, 2),
    kills=st.dictionaries(st.integers(1, 300), st.integers(1, 3), max_size=2),
    joins=st.lists(st.integers(1, 200), max_size=1),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_a_trial_that_is_undone_counts_for_nothing(
    seed: int, workers: int, samples: int, ahead: int, kills: dict[int, int], joins: list[int]
) -> None:
    job = FakeJob("tests.trying:Trying", workers, samples, 3, EPOCHS, seed, ahead)
    events = {tick: f"kill {rank % workers}" for tick, rank in kills.items() if workers > 1}
    job.run(events | dict.fromkeys(joins, f"join {workers}"))
    processed_once(job)


def test_behind_a_trial_the_job_is_where_it_was() -> None:
    job = FakeJob("tests.trying:Trying", 3, 240, 4, EPOCHS, seed=1)
    job.run({})
    phases = [policy.spec for policy, _, _ in job.traces]
    assert phases[:3] == ["bsp", "asp", "bsp"]
    state = job.coordinator.job
    assert state.rolled_back_samples >= 9 * 4
    assert state.samples == EPOCHS * 240
    assert not state.trouble


def test_what_was_kept_before_a_trial_survives_the_coordinator(job: Job) -> None:
    first = Rollback(job)
    first.begin_epoch(())
    job.samples += 100
    first.begin_trial(7, keeps=True)
    job.samples += 50
    first.end_trial(undone=True)
    assert first.go_back() == (0,)
    job.samples = 150
    ready = job.members[0].ready
    assert ready is not None
    second = Rollback(job)
    second.take_up(first.record, ready)
    assert (second.epoch, second.go_back(), job.samples, job.rolled_back_samples) == (-7, (0,), 100, 50)
    second.arrived()
    second.end_trial(undone=True)
    assert not second.goes_back, "it has gone back already"


def test_a_trial_that_nobody_kept_the_start_of_is_not_undone(job: Job) -> None:
    rollback = Rollback(job)
    rollback.begin_epoch(())
    rollback.begin_trial(2, keeps=True)
    job.samples += 50
    rollback.end_trial(undone=True)
    job.members = {3: Member(Ready(0, 10_000, batch_size=10))}
    assert (rollback.go_back(), rollback.goes_back, job.samples) == ((), False, 50)


class Desk:
    """Where a rollback's messages go."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, worker: int, message: Any) -> None:
        self.sent.append((worker, message))


@pytest.fixture
def job() -> Job:
    """Three workers at the start of an epoch of 10 000 samples."""
    job = Job(3, Desk(), lambda: 0.0)  # type: ignore[arg-type]
    job.workload, job.epoch = Workload(10_000, 10_000), 0
    for rank in range(3):
        job.members[rank] = Member(Ready(0, 10_000, batch_size=10))
    return job


def next_epoch(job: Job, job_rollback: Rollback) -> None:
    job.epoch += 1
    job.samples += 10_000
    job.workload.drain()
    job.workload.extend(10_000)
    for rank in job.members:
        job.members[rank].ready = Ready(job.epoch, 10_000, batch_size=10)
    job_rollback.begin_epoch((0, 1, 2))


@pytest.mark.parametrize(("after", "epoch"), [(UNSURE * 30, 2), (UNSURE * 30 - 1, 1)], ids=["sure", "in doubt"])
def test_it_goes_back_to_before_the_losses_in_doubt(job: Job, after: int, epoch: int) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch(())
    for _ in range(2):
        next_epoch(job, job_rollback)
    job.samples += after
    assert job_rollback.diverged(1, Diverged(1, "is nan", rollback=True), in_phase=True)
    assert job_rollback.epoch == epoch
    assert job_rollback.go_back() == (0,)
    assert (job.samples, job.rolled_back_samples) == (20_000, after + (10_000 if epoch == 1 else 0))
    assert job.workload.left == 10_000


def test_whoever_lives_of_those_that_kept_it_has_the_state(job: Job) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch((1, 2))  # rank 0 is new
    job.samples += 5_000
    assert job_rollback.diverged(2, Diverged(1, "is nan", rollback=True), in_phase=True)
    assert job_rollback.go_back() == (1,)
    del job.members[1]
    assert job_rollback.go_back() == (2,), "the phase failed before its members had agreed"
    assert job.rolled_back_samples == 5_000
    job_rollback.arrived()
    assert not job_rollback.goes_back


def test_when_all_have_left_the_epoch_it_goes_back_to_a_state_that_they_still_have(job: Job) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch(())
    next_epoch(job, job_rollback)
    job.samples += 10
    assert job_rollback.diverged(1, Diverged(1, "is nan", rollback=True), in_phase=True)
    assert job_rollback.epoch == 0
    next_epoch(job, job_rollback)
    assert job_rollback.epoch == job_rollback.record.goal == 1
    assert job_rollback.go_back() == (0,)
    assert (job.samples, job.rolled_back_samples) == (20_010, 10_010)
    assert "went back to the start of epoch 1" in job.trouble
    job_rollback.go_back()
    assert job.rolled_back_samples == 10_010, "a second attempt loses nothing more"


def test_losses_that_diverge_before_the_first_step_of_an_epoch_cost_the_one_before(job: Job) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch(())
    next_epoch(job, job_rollback)
    assert job_rollback.diverged(1, Diverged(1, "is nan", rollback=True), in_phase=True)
    job_rollback.go_back()
    assert job.rolled_back_samples == 10_000


def test_without_such_a_worker_it_ends(job: Job) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch((2,))
    assert job_rollback.diverged(2, Diverged(1, "is nan", rollback=True), in_phase=True)
    del job.members[2]
    assert job_rollback.go_back() == ()
    assert isinstance(job.effects, Desk)
    assert [worker for worker, message in job.effects.sent if isinstance(message, Ended)] == [0, 1]


@pytest.mark.parametrize(("rollback", "in_phase"), [(False, True), (True, False)], ids=["not asked for", "too late"])
def test_otherwise_everyone_hears_what_it_has_cost(job: Job, rollback: bool, in_phase: bool) -> None:
    job_rollback = Rollback(job)
    job_rollback.begin_epoch(())
    job.samples = 1234
    assert not job_rollback.diverged(1, Diverged(1, "is inf", rollback), in_phase)
    assert not job_rollback.diverged(2, Diverged(1, "is nan", rollback), in_phase), "it has ended already"
    assert isinstance(job.effects, Desk)
    reasons = [message.reason for _, message in job.effects.sent]
    assert reasons == ["the loss of rank 1 is inf: diverged after 1234 samples"] * 3
