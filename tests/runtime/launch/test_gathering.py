"""Which hosts of a job are there, and whom it waits for."""

from unittest.mock import Mock

import pytest

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch import gathering
from polyrhythm.runtime.launch.gathering import LastCall
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.wire.protocol import Address

TWO_OF_EACH = 2


class Meeting:
    """What the coordinator says, and what the launcher does about it."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state, self.said, self.absent, self.now_s = Mock(epoch=-1, workers=[]), list[str](), list[int](), 0.0
        monkeypatch.setattr(gathering, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(steer, "status", lambda address: self.state)
        monkeypatch.setattr(steer, "absent", lambda address, rank, said: self.absent.append(rank))
        self.call = LastCall(Address("", "job"), node, TWO_OF_EACH, self.said.append)

    def look(self, now_s: float, *ranks: int) -> bool:
        """At this moment, when these have joined; whether there is nothing more to look at."""
        self.now_s, self.state.workers = now_s, [Mock(rank=rank) for rank in ranks]
        return self.call._look()


def test_a_job_that_does_not_begin_says_for_whom_it_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(Node(count=3), monkeypatch)
    assert not meeting.look(29.0, 0, 1)
    assert meeting.said == []
    assert not meeting.look(31.0, 0, 1, 4)
    assert not meeting.look(90.0, 0, 1, 4)
    assert meeting.said == ["the job waits for hosts 1, 2 of 3 to begin"]
    assert meeting.look(91.0, 0, 1, 2, 3, 4, 5)
    assert meeting.absent == []


def test_a_job_that_has_begun_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(Node(count=2), monkeypatch)
    meeting.state.epoch = 0
    assert meeting.look(40.0, 0, 1)
    assert meeting.said == []


def test_a_host_of_which_the_coordinator_has_not_heard_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked again and again, each time with the same line."""
    meeting = Meeting(Node(count=2, least=1), monkeypatch)
    answers, absent = iter((False, False, True, True)), meeting.absent

    def hear(address: Address, rank: int, said: bool) -> None:
        if not next(answers):
            raise UnreachableError("silent for 10 s")
        absent.append(rank)

    monkeypatch.setattr(steer, "absent", hear)
    assert [meeting.look(now_s, 0, 1) for now_s in (1.0, 12.0, 13.0, 14.0)] == [False, False, False, True]
    assert (len(meeting.said), absent) == (1, [2, 3])


def test_a_job_of_at_least_one_host_begins_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(Node(count=2, least=1), monkeypatch)
    assert not meeting.look(1.0, 0, 1)
    assert meeting.look(12.0, 0, 1)
    assert meeting.said == ["host 1 is not there; the job begins without it, and it may come at any time"]
    assert meeting.absent == [2, 3]
