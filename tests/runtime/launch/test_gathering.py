"""Which hosts of a job are there, and whom it waits for."""

from unittest.mock import Mock

import pytest

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch import gathering
from polyrhythm.runtime.launch.gathering import FIRST_S, LastCall, state_of_first
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


@pytest.mark.parametrize(("joined", "host"), [((), 1), ((2, 3), 0)])
def test_this_host_is_waited_for_only_if_all_others_are_there(
    monkeypatch: pytest.MonkeyPatch, joined: tuple[int, ...], host: int
) -> None:
    """Its workers join after the others have come, if the script meets them in init_process_group."""
    meeting = Meeting(Node(count=2), monkeypatch)
    assert not meeting.look(31.0, *joined)
    assert meeting.said == [f"the job waits for host {host} of 2 to begin"]


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


def ask_first(monkeypatch: pytest.MonkeyPatch, *silences: float) -> tuple[object, list[str]]:
    """What comes of it if the coordinator ends the connection after each of these seconds, and then answers."""
    now_s, said, left, state = [0.0], list[str](), list(silences), Mock()

    def status(address: Address, patience_s: float) -> object:
        if not left:
            return state
        now_s.append(now_s[-1] + min(left.pop(0), patience_s))
        raise UnreachableError("no answer")

    monkeypatch.setattr(gathering, "monotonic", lambda: now_s[-1])
    monkeypatch.setattr(gathering, "say", said.append)
    monkeypatch.setattr(steer, "status", status)
    try:
        return state_of_first(Address("tcp:host:1", "job")) is state, said
    except UnreachableError:
        return now_s[-1], said


SAID = ["the coordinator at tcp:host:1 listens but does not answer yet; it has 600 s"]


@pytest.mark.parametrize(
    ("silences", "found"),
    [
        ([], (True, [])),
        ([99.0] * 5, (True, SAID)),
        ([99.0, 0.1], (gathering.QUIET_S + 0.1, SAID)),
        ([99.0] * 50, (FIRST_S, SAID)),
    ],
)
def test_a_coordinator_that_listens_is_awaited_and_one_that_is_gone_is_not(
    silences: list[float], found: tuple[object, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host it imported for more than a minute; another host gave up, and the first waited for that."""
    assert ask_first(monkeypatch, *silences) == found
