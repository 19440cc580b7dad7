"""A coordinator that takes up what another one has left, in memory."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from polyrhythm.core import Decisions, Event, LeftReason
from polyrhythm.core.policy_state import decode_state
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.coordinator.recovery.recovery import Recovery
from polyrhythm.runtime.coordinator.recovery.service import JobRecovery
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Phase, Ready, Stepped
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from tests.runtime.coordinator.recovery.guarded_job import HANG_AFTER_S, GuardedServer, Time
from tests.runtime.fake_job import FakeJob


def test_nobody_books_the_time_without_a_coordinator() -> None:
    """What a policy has measured goes on; the stretch of time that was under way does not."""
    job, records = FakeJob("auto", workers=3, samples=1800, batch_size=8, epochs=2, seed=2), list[JobRecord]()
    config = JobConfig(job="job", workers=3, policy="auto", epochs=2)

    def see(event: Event, decisions: Decisions) -> None:
        if job.coordinator.choice.stages.known.mind.window is not None:
            records.append(job.coordinator.record(config, "between", 0.0))

    with patch.object(job, "record", see):
        job.run({})
    before = decode_state(records[0].supervised).mind
    following = RecoverableCoordinator(parse_policy("auto"), 3, job, lambda: 0.0, 2)
    following.take_up(records[0])
    mind = following.choice.stages.known.mind
    assert mind.window is None
    assert (mind.account, mind.evidence.processed) == (before.account, before.evidence.processed)


def test_who_has_come_since_the_record_has_not_died() -> None:
    """Nor who had left its loop early, and stood before the next epoch."""
    records, config = list[JobRecord](), JobConfig(job="job", workers=2, policy="asp", epochs=2)

    class Recorded(FakeJob):
        killed = False

        def record(self, event: Event, decisions: Decisions) -> None:
            if self.all_there and not self.killed:
                records.append(self.coordinator.record(config, "stepping", 0.0))

    job = Recorded("asp", workers=2, samples=60, batch_size=3, epochs=2, seed=1)
    job.run({})
    job.killed = True
    following = RecoverableCoordinator(parse_policy("asp"), 2, job, lambda: 0.0, 2)
    recovery = Recovery(following, records[len(records) // 4])
    following.job.connect(2)
    for worker in (0, 1):
        recovery.returned(worker, Returned())
    job.losses.clear()
    recovery.go_on()
    assert job.losses == []
    assert set(following.job.members) == {0, 1, 2}


class ServerOfTheLiving(GuardedServer):
    """A coordinator's process with a job in memory, at which some workers show that they live."""

    def __init__(self, time: Time, job: FakeJob, living: set[int]) -> None:
        super().__init__(time, 1)
        self.coordinator = RecoverableCoordinator(parse_policy("selsync:0.05"), 2, job, lambda: time.now_s, 2)
        self.shards: Any = SimpleNamespace(others=())
        self._living, self.cuts = living, list[tuple[float, str]]()
        self.recovery: JobRecovery | None = None
        self.removed: dict[int, tuple[str, LeftReason]] = {}

    def there(self, worker: int) -> bool:
        return worker in self._living

    def cut(self, reason: str) -> None:
        self.cuts.append((self.elapsed(), reason))

    def act(self, act: Callable[[], None]) -> None:
        act()

    def hear(self, worker: int, message: Any) -> None:
        if isinstance(message, Returned) and self.recovery is not None:
            self.recovery.heard(worker, message)
        else:
            self.coordinator.receive(worker, message)

    def remove(self, worker: int, why: str, reason: LeftReason) -> None:
        self.removed[worker] = why, reason

    def end_if_empty(self) -> None:
        """Somebody is there."""


def record_of(policy: str) -> bytes:
    """What the coordinator of a job of two has left as its first steps began."""
    job, noted = FakeJob(policy, workers=2, samples=60, batch_size=3, epochs=2, seed=1), list[bytes]()

    def note(stand: Stand) -> None:
        record = job.coordinator.record(JobConfig(job="job", workers=2, epochs=2), stand, 0.0)
        noted.append(msgspec.msgpack.encode(record))

    job.coordinator.note = note
    job.run({})
    return noted[0]


def test_those_who_come_when_all_have_died_make_what_is_left() -> None:
    """The servers have the parameters."""
    job = FakeJob("asp", workers=2, samples=60, batch_size=3, epochs=2, seed=1)
    following = RecoverableCoordinator(parse_policy("asp"), 2, job, lambda: 0.0, 2)
    recovery = Recovery(following, msgspec.msgpack.decode(record_of("asp"), type=JobRecord))
    for worker in (0, 1):
        recovery.lost(worker)
    recovery.go_on(newcomers=(0, 1))
    for worker in (0, 1):
        following.receive(worker, Ready(0, 60, 3))
    assert following.stepping
    assert following.job.skipped_samples == 0
    assert following.job.workload.left == 60 - 2 * 3, "each has a mini-batch in hand"


@pytest.fixture
def memory() -> Iterator[RecoveryMemory]:
    memory = RecoveryMemory.create()
    memory.write(record_of("selsync:0.05"))
    yield memory
    memory.close()


def fresh_job() -> FakeJob:
    return FakeJob("selsync:0.05", workers=2, samples=60, batch_size=3, epochs=2, seed=1)


def opened(memory: RecoveryMemory, job: FakeJob) -> tuple[ServerOfTheLiving, JobRecovery]:
    """The next coordinator's process, in which both workers have shown that they live."""
    server = ServerOfTheLiving(Time(), job, living={0, 1})
    recovery = server.recovery = JobRecovery(memory)
    recovery.open(server)
    return server, recovery


def test_who_comes_back_a_second_time_joins_as_at_first(memory: RecoveryMemory) -> None:
    """Its connection has ended after it had come back, so it was given up, but it lives."""
    server, recovery = opened(memory, job := fresh_job())
    stood = Returned(ready=Ready(0, 60, 3))
    recovery.heard(1, stood)
    recovery.lost(1)
    recovery.heard(1, stood)
    recovery.heard(0, stood)
    assert recovery.returning is None
    assert server.coordinator.job.present == (0, 1)
    assert job.losses == [(1, "died")]


def test_who_died_with_the_coordinator_and_came_back_has_no_state(memory: RecoveryMemory) -> None:
    """Nor is it taken for one that leaves its loop early, though it says that it begins."""
    _, recovery = opened(memory, job := fresh_job())
    with patch.object(job, "send") as send:
        recovery.heard(0, Ready(0, 60, 3))
        recovery.heard(1, Returned(ready=Ready(0, 60, 3), phase=1, inside=True, run=1))
    phases = [message for worker, message in (call.args for call in send.mock_calls) if isinstance(message, Phase)]
    assert {phase.source for phase in phases} == {1}


@pytest.mark.parametrize("asks", ["a switch", "a checkpoint"])
def test_what_is_asked_for_while_workers_come_back_waits_for_them(memory: RecoveryMemory, asks: str) -> None:
    """It opened a phase at once, for those who were awaited too, and their coming back another one."""
    memory.write(record_of("asp"))
    server = CoordinatorServer(JobConfig(job=f"asked-{os.getpid()}", workers=2), memory=memory)
    coordinator, answers = server.coordinator, list[str]()
    recovered = coordinator.phase
    if asks == "a switch":
        server.act(coordinator.choice.propose, parse_policy("ssp:3"), answers.append)
    else:
        server.act(coordinator.save)
    assert (coordinator.phase, answers) == (recovered, [])
    for worker in (0, 1):
        server.hear(worker, Returned(ready=Ready(0, 60, 3), phase=recovered, run=1))
    assert coordinator.phase == recovered + 1
    assert coordinator.choice.spec == ("ssp:3" if asks == "a switch" else "asp")
    assert answers == [""] * (asks == "a switch")
    assert coordinator.snapshots.wanted == (asks == "a checkpoint")
    server.loop.close()


def test_a_policy_that_was_promised_is_known_to_the_next_coordinator(memory: RecoveryMemory) -> None:
    memory.write(record_of("bsp"))
    server = CoordinatorServer(JobConfig(job=f"promised-{os.getpid()}", workers=2), memory=memory)
    for worker in (0, 1):
        server.hear(worker, Returned(ready=Ready(0, 60, 3), phase=server.coordinator.phase, run=1))
    promised = list[str]()

    def answer(refusal: str) -> None:
        kept = memory.read()
        assert kept is not None
        promised.extend([refusal, msgspec.msgpack.decode(kept.record, type=JobRecord).chosen])

    server.act(server.coordinator.choice.propose, parse_policy("ssp:3"), answer)
    assert promised == ["", "ssp:3"]
    server.loop.close()


def test_who_cannot_take_part_any_more_is_told(memory: RecoveryMemory) -> None:
    server, recovery = opened(memory, fresh_job())
    recovery.heard(1, Ready(0, 60, 3))
    recovery.heard(1, Stepped(0, 3, 0.1, 1))
    recovery.heard(0, Returned(ready=Ready(0, 60, 3)))
    assert server.removed == {1: ("rank 1 sent Stepped but makes no steps in this phase", "died")}


def test_who_stands_in_an_exchange_with_one_that_is_given_up_is_told(memory: RecoveryMemory) -> None:
    """Worker 1 was stopped, so its connections stand, and the exchange with it does not end by itself."""
    server = ServerOfTheLiving(time := Time(), fresh_job(), living={0})
    recovery = JobRecovery(memory)
    recovery.open(server)
    time.run(HANG_AFTER_S - 0.1)
    assert server.cuts == []
    time.run(HANG_AFTER_S + 0.1)
    assert server.cuts == [(HANG_AFTER_S, "rank 1 is gone")]
    recovery.heard(0, Returned())
    assert recovery.returning is None


def test_who_begins_the_script_anew_cannot_come_to_a_later_training() -> None:
    memory = RecoveryMemory.create()
    memory.begin_again([])
    recovery = JobRecovery(memory)
    recovery.check_training(1)
    with pytest.raises(UsageError, match="at its training number 1, and the job at number 2"):
        recovery.check_training(0)
    with pytest.raises(UsageError, match="it has finished its training number 2 and waited for the next one"):
        recovery.check_training(2)
