"""What is said when a job that is asked to end cannot keep a last checkpoint."""

import pytest

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.protocol import Address


class GoneJob:
    """A job whose coordinator answers once, and then no more; `asked_s` is how long it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, asked_s: float, follows: bool = False) -> None:
        self._now_s, self._asked_s, self._answers = 0.0, asked_s, iter((True, follows))
        self.said: list[str] = []
        monkeypatch.setattr(steer, "status", self._status)
        monkeypatch.setattr(steer, "take_checkpoint", self._take)
        monkeypatch.setattr(steer, "say", self.said.append)
        monkeypatch.setattr("time.monotonic", lambda: self._now_s)
        steer.keep_last(Address("unix:@gone", "gone", ""), 15.0)

    def _status(self, address: Address, patience_s: float) -> None:
        if not next(self._answers):
            raise UnreachableError("the server closed the connection")

    def _take(self, address: Address, patience_s: float, last: bool) -> None:
        self._now_s += self._asked_s
        raise UnreachableError("silent, or gone")


LATE = "no checkpoint was kept within 15 s; workers end without"


def test_a_job_that_ends_meanwhile_is_not_said_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers may have heard of the signal, too, and be through; most jobs keep no checkpoints."""
    assert GoneJob(monkeypatch, 0.1).said == []


def test_a_job_that_keeps_none_in_time_is_said_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GoneJob(monkeypatch, 15.0).said == [LATE]


def test_a_coordinator_that_follows_one_which_died_has_kept_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GoneJob(monkeypatch, 0.2, follows=True).said == [
        "no last checkpoint was kept: silent, or gone; workers end without"
    ]
