"""What a job knows of its members between two phases."""

from typing import Any, cast

import pytest

from polyrhythm.core.workload import UNKNOWN
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.wire.protocol import AtEnd, Awaited, Ready

AWAY = AtEnd(0, 1, away=True)

IN_FIRST = AtEnd(0, 1, away=True, collectives=1)
"""Its script waits in the first collective of all ranks since the epoch."""


class Sent(list[tuple[int, object]]):
    """What workers are sent."""

    def send(self, worker: int, message: object) -> None:
        self.append((worker, message))

    def tell_loss(self, worker: int, reason: str) -> None:
        self.append((worker, reason))


def between_epochs(sent: Sent | None = None) -> Job:
    """Two workers are through with epoch 0."""
    job = Job(2, cast(Any, sent), lambda: 0.0)
    job.epoch = 0
    for worker in (0, 1):
        job.connect(worker)
        job.members[worker].ready = Ready(0, 8, 1)
    return job


def test_who_waits_outside_is_left_out_when_it_has_said_so_twice() -> None:
    """The first word may cross what it waits for."""
    job = between_epochs()
    for _ in range(3):  # nobody needs it yet
        job.leave_out(0, AWAY)
    job.members[1].ready = Ready(1, 8, 1)
    assert not job.may_begin_epoch()
    job.leave_out(0, AWAY)
    assert not job.may_begin_epoch()
    job.leave_out(0, AWAY)
    assert job.may_begin_epoch()


@pytest.mark.parametrize("first", ["waits", "begins"])
def test_who_waits_in_a_collective_is_called_by_those_who_have_yet_to_come_to_it(first: str) -> None:
    job = between_epochs(sent := Sent())
    if first == "waits":
        job.leave_out(0, IN_FIRST)
    job.members[1].ready = Ready(1, 8, 1, collectives=0)
    if first == "begins":
        job.leave_out(0, IN_FIRST)
    job.call_in()
    job.call_in()
    assert sent == [(0, Awaited(0))]


@pytest.mark.parametrize("collectives", [1, None])
def test_who_waits_in_a_collective_is_not_called_by_those_who_are_past_it(collectives: int | None) -> None:
    """It has not noticed its end, or a newcomer cannot tell."""
    job = between_epochs(sent := Sent())
    job.members[1].ready = Ready(1, 8, 1, collectives=collectives)
    job.leave_out(0, IN_FIRST)
    assert not sent


def test_a_late_word_changes_nothing() -> None:
    job = between_epochs(sent := Sent())
    for worker in (0, 1):
        job.members[worker].ready = Ready(1, 8, 1, collectives=0)
        for _ in range(2):
            job.leave_out(0, IN_FIRST)
            job.leave_out(0, AtEnd(1, 2, away=True, collectives=1))
    assert all(member.ready == Ready(1, 8, 1, collectives=0) for member in job.members.values())
    assert not sent


def of_own_data(*lengths: int, epoch: int = 0) -> Job:
    """Each worker, of mini-batches of four, has so many of its own in every epoch."""
    job = Job(len(lengths), cast(Any, Sent()), lambda: 0.0)
    for worker in range(len(lengths)):
        job.connect(worker)
    begin_own(job, *lengths, epoch=epoch)
    return job


def begin_own(job: Job, *lengths: int, epoch: int) -> None:
    for worker, member in job.members.items():
        whole = lengths[worker] * job.planned * 4 if lengths[worker] else UNKNOWN
        member.ready = Ready(epoch, whole, 4, processed=(4 * job.planned * (job.epoch < 0),), own=True)
    job.begin_epoch()


def test_shares_are_of_the_samples_that_workers_have_together() -> None:
    job = of_own_data(12, 2, 2)
    assert job.cluster(4).workload_samples == 4 * 16 * 4
    job.samples = 60  # nobody trained on the mini-batch with which an epoch ended
    begin_own(job, 12, 2, 2, epoch=1)
    job.members[1] = Member(job.members[1].ready, out=True)
    assert job.cluster(4).workload_samples == 60 + 3 * 16 * 4


def test_shares_of_a_job_that_has_lost_a_worker_are_of_what_is_left() -> None:
    job = of_own_data(10, 10)
    job.samples = 80
    begin_own(job, 10, 10, epoch=1)
    del job.members[1]
    assert job.cluster(4).workload_samples == 80 + 3 * 40


def test_epochs_before_the_first_are_as_long_as_that() -> None:
    job = of_own_data(20, 2, epoch=2)
    job.samples = 22 * 4
    assert (job.done_samples, job.cluster(5).workload_samples) == (3 * 22 * 4, 5 * 22 * 4)
    del job.members[0]
    assert job.done_samples == 3 * 22 * 4
    other = Job(2, cast(Any, Sent()), lambda: 0.0)
    other.go_on(job.position, job.position.ready)
    other.members = job.members
    other.count_own_data()
    assert (other.done_samples, other.cluster(5).workload_samples) == (3 * 22 * 4, (2 * 22 + 3 * 2) * 4)


def test_who_stands_outside_of_its_loop_still_has_its_data() -> None:
    job = of_own_data(10, 10)
    job.members[1].ready = None
    job.members[0].ready = Ready(1, 80, 4, own=True)
    job.begin_epoch()
    assert job.cluster(2).workload_samples == 4 + 4 + 20 * 4


def test_of_an_epoch_of_unknown_length_there_is_no_share() -> None:
    assert of_own_data(0, 0).cluster(2).workload_samples >= UNKNOWN


def test_nobody_goes_on_without_the_last_of_those_who_have_not_joined(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(2, cast(Any, Sent()), lambda: 0.0)
    assert job.excuse(1)
    assert job.excuse(0)
    assert caplog.messages == ["rank 1 has not joined; going on without it", "rank 0 has not joined"]


def test_who_has_said_why_it_does_not_join_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(2, cast(Any, Sent()), lambda: 0.0)
    assert job.excuse(1, said=True)
    assert job.excuse(0)
    assert caplog.messages == ["rank 0 has not joined"]


def test_the_log_counts_no_epochs_before_the_first(caplog: pytest.LogCaptureFixture) -> None:
    job = between_epochs(Sent())
    job.tell_loss(1, "died", "in phase 1 (bsp)")
    job.epoch = -1
    job.tell_loss(0, "died", "in phase 0 (bsp)")
    assert caplog.messages == ["rank 1 died in phase 1 (bsp), epoch 0", "rank 0 died before the first epoch"]
