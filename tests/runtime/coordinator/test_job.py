"""What a job knows of its members between two phases."""

from typing import Any, cast

from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.wire.protocol import Ready


def between_epochs() -> Job:
    """Two workers are through with epoch 0."""
    job = Job(2, cast(Any, None), lambda: 0.0)
    job.epoch = 0
    for worker in (0, 1):
        job.connect(worker)
        job.members[worker].ready = Ready(0, 8, 1)
    return job


def test_who_waits_outside_is_left_out_when_it_has_said_so_twice() -> None:
    """The first word may cross what it waits for."""
    job = between_epochs()
    for _ in range(3):  # nobody needs it yet
        job.leave_out(0, 0)
    job.members[1].ready = Ready(1, 8, 1)
    assert not job.may_begin_epoch()
    job.leave_out(0, 0)
    assert not job.may_begin_epoch()
    job.leave_out(0, 0)
    assert job.may_begin_epoch()


def test_a_late_word_changes_nothing() -> None:
    job = between_epochs()
    for worker in (0, 1):
        job.members[worker].ready = Ready(1, 8, 1)
        for _ in range(2):
            job.leave_out(0, 0)
            job.leave_out(0, 1)
    assert all(member.ready == Ready(1, 8, 1) for member in job.members.values())
