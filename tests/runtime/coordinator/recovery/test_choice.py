"""What the next coordinator knows of the choice of policies: which one goes on where the one in force cannot."""

from collections.abc import Mapping

import msgspec
import pytest

from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.members.proposal import nobody
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.coordinator.recovery.recovery import Recovery
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import CollectiveFailed, Confirmed, Entered
from tests.runtime.fake_job import FakeJob

OBJECTION = "train.py:3: no"


class Switched(FakeJob):
    """A job of an unmodified script that goes from bsp to asp; every record that its coordinator leaves."""

    against: Mapping[str, int] = {"no policy": 0}

    def __init__(self) -> None:
        super().__init__("bsp", workers=2, samples=120, batch_size=3, epochs=2, seed=1)
        self.left: list[JobRecord] = []
        self.coordinator.note = self._note
        self.coordinator.job.chosen = self._learn
        self.run({20: "switch asp"})

    def _note(self, stand: Stand) -> None:
        self._keep(self.coordinator.record(JobConfig(job="job", workers=2, epochs=2), stand, 0.0))

    def _learn(self) -> None:
        self._keep(msgspec.structs.replace(self.left[-1], **self.coordinator.learned))

    def _keep(self, record: JobRecord) -> None:
        self.left.append(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=JobRecord))

    def follow(self, chosen: str, policy: str, stand: Stand, **others: str) -> Coordinator:
        """The next coordinator, which goes on from the first record that is so."""
        here = [each for each in self.left if (each.chosen, each.policy, each.stand) == (chosen, policy, stand)]
        record, following = here[0], RecoverableCoordinator(parse_policy("bsp"), 2, self, lambda: 0.0, 2)
        recovery = Recovery(following, msgspec.structs.replace(record, **others))
        for worker, member in record.members.items():
            recovery.returned(worker, Returned(ready=member.ready, phase=record.phase, run=record.run))
        recovery.go_on()
        return following


@pytest.fixture
def job() -> Switched:
    return Switched()


def enter(coordinator: Coordinator, refusal: str = "", broken: bool = True) -> None:
    """The workers answer on the way into a phase, rank 1 perhaps that it cannot."""
    phase = coordinator.phase
    coordinator.receive(1, CollectiveFailed(phase, 0, refusal, broken=broken) if refusal else Entered(phase))
    coordinator.receive(0, Entered(phase))


def accept(coordinator: Coordinator, policy: str) -> None:
    """All can follow it, as far as they know."""
    coordinator.choice.propose(parse_policy(policy), nobody)
    for worker in (0, 1):
        coordinator.choice.confirmed(worker, Confirmed(1))


STANDS: list[tuple[str, Stand]] = [("bsp", "stepping"), ("asp", "entering"), ("asp", "stepping")]


@pytest.mark.parametrize(("policy", "stand"), STANDS)
def test_a_policy_that_a_script_is_against_gives_way_to_the_one_before(
    job: Switched, policy: str, stand: Stand
) -> None:
    coordinator = job.follow("asp", policy, stand)
    assert coordinator.policy.spec == "asp"
    enter(coordinator, OBJECTION)
    assert coordinator.policy.spec == "bsp"
    assert [*coordinator.choice.notices] == [f"{OBJECTION}; asp does not begin, and bsp goes on"]


@pytest.mark.parametrize(("policy", "stand"), STANDS)
def test_a_policy_that_fails_gives_way_to_the_one_before_once(job: Switched, policy: str, stand: Stand) -> None:
    coordinator = job.follow("asp", policy, stand)
    enter(coordinator)
    coordinator.job.policy_failed(PolicyError("oops"))
    assert [*coordinator.choice.notices] == ["oops; asp is out of force, and bsp goes on"]
    coordinator.choice.phase += 1
    with pytest.raises(PolicyError, match="oops"):
        coordinator.job.policy_failed(PolicyError("oops"))


def test_what_has_not_begun_yet_is_nothing_to_go_back_to(job: Switched) -> None:
    coordinator = job.follow("asp", "asp", "entering")
    accept(coordinator, "local:4")
    for _ in range(2):
        enter(coordinator, OBJECTION)
    without, instead = "local:4 goes on without asp", "local:4 does not begin, and bsp goes on"
    assert [*coordinator.choice.notices] == [f"{OBJECTION}; {without}", f"{OBJECTION}; {instead}"]


def test_what_has_begun_before_goes_on_though_its_workers_are_on_their_way_into_it_again(job: Switched) -> None:
    coordinator = job.follow("bsp", "bsp", "stepping")
    accept(coordinator, "asp")
    enter(coordinator, "no group", broken=False)
    assert coordinator.policy.spec == "asp"
    enter(coordinator, OBJECTION)
    assert coordinator.policy.spec == "bsp"


def test_one_that_cannot_be_read_any_more_is_said_and_costs_nothing_before_it_is_needed(
    job: Switched, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file is gone since the job has left it."""
    coordinator = job.follow("asp", "asp", "stepping", before="./gone.py:Mine")
    enter(coordinator)
    assert "the job cannot go back to the policy before: policy file './gone.py' does not exist" in caplog.text
    with pytest.raises(PolicyError, match="oops"):
        coordinator.job.policy_failed(PolicyError("oops"))
