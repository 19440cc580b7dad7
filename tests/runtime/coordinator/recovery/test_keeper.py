"""Who starts coordinators says what is true: whether another one follows."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from polyrhythm.runtime.coordinator.recovery.keeper import SERVER_LOST, CoordinatorKeeper
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
