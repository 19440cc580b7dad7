"""What a job knows of its members between two phases."""

from typing import Any, cast

import pytest

from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.wire.protocol import AtEnd, Awaited, Ready

AWAY = AtEnd(0, 1, away=True)

IN_FIRST = AtEnd(0, 1, away=True, collectives=1)
"""Its script waits in the first collective of all ranks since the epoch."""


class Sent(list[tuple[int, object]]):
    """What workers are sent."""

    def send(self, worker: int, message: object) -> None:
        self.append((worker, message))


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
