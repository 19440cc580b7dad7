"""Who starts coordinators says what is true: whether another one follows."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import BROKEN, SpecError, UsageError
from polyrhythm.runtime.coordinator import process
from polyrhythm.runtime.coordinator.process import CoordinatorOrder, read_order
from polyrhythm.runtime.coordinator.recovery.keeper import SERVER_LOST, CoordinatorKeeper
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """What a keeper does to its process is undone."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    gc.unfreeze()


def die(memory: RecoveryMemory) -> int:
    """Body of a coordinator that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def lose_server(memory: RecoveryMemory) -> int:
    """Body of one that has lost a server of parameters, and ends in good order the second time."""
    return 0 if memory.deaths else SERVER_LOST


def test_one_that_can_be_followed_is_until_too_many_have_died(caplog: pytest.LogCaptureFixture) -> None:
    memory = RecoveryMemory.create()
    memory.begin()
    assert CoordinatorKeeper(die, 2, memory).run() == 128 + signal.SIGKILL
    assert [record.message.partition("; ")[2] for record in caplog.records] == [
        "it is started again (1 of 2)",
        "it is started again (2 of 2)",
        "it was started again 2 times before, and the job ends",
    ]


def test_one_that_has_lost_a_server_is_followed_by_another_one(caplog: pytest.LogCaptureFixture) -> None:
    memory = RecoveryMemory.create()
    memory.begin()
    assert CoordinatorKeeper(lose_server, 2, memory).run() == 0
    (said,) = caplog.records
    assert said.message == "the coordinator has lost a parameter server; it is started again (1 of 2)"


def test_one_that_nobody_could_follow_says_in_one_line_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def miss_policy(*_: object, **__: object) -> None:
        raise SpecError("policy file 'mine.py' does not exist")

    monkeypatch.setattr(process, "CoordinatorServer", miss_policy)
    monkeypatch.setattr(process, "prepare", bool)
    assert process.serve(JobConfig(workers=1), []) == BROKEN
    assert [record.message for record in caplog.records] == [
        "cannot serve the job: policy file 'mine.py' does not exist"
    ]


def test_one_that_another_one_could_follow_is_no_such_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may be in use for a moment, by a server of the coordinator before."""

    def find_in_use(*_: object, **__: object) -> None:
        raise UsageError("cannot listen on unix:@mine: the name is in use")

    monkeypatch.setattr(process, "CoordinatorServer", find_in_use)
    monkeypatch.setattr(process, "prepare", bool)
    with pytest.raises(UsageError):
        process.serve(JobConfig(workers=1), [])


def test_an_order_that_names_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    order = msgspec.json.encode(CoordinatorOrder(JobConfig(workers=1, policy="asp")))
    assert read_order(order).config.policy == "asp"
    with pytest.raises(UsageError, match=r"policy file '.*mine.py' does not exist"):
        read_order(order.replace(b'"asp"', f'"{tmp_path}/mine.py:Mine"'.encode()))
    with pytest.raises(msgspec.ValidationError):
        read_order(b"[]")
