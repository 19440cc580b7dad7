"""The way into a phase, by itself and on the coordinator."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.phase_entry import ATTEMPTS, PhaseEntry
from polyrhythm.runtime.wire.protocol import Bye, CollectiveFailed, Entered, Phase, Ready, SynchronousSteps
from tests.runtime.coordinator.test_coordinator import EPOCHS, processed_once, seeds
from tests.runtime.fake_job import FakeJob

PAIRS = [
    ("bsp", "asp"),
    ("asp", "bsp"),
    ("local:3", "ssp:1"),
    ("local:3", "bsp"),
    ("selsync:0.05", "local:3"),
    ("esync", "k-sync:2"),
    ("k-sync:2", "esync"),
]


def test_all_have_to_enter() -> None:
    entry = PhaseEntry((0, 1))
    entry.entered(0)
    assert not entry.answered
    entry.entered(1)
    assert (entry.answered, entry.succeeded, entry.inside) == (True, True, {0, 1})


def test_one_that_is_lost_or_fails_is_told_of_once() -> None:
    entry = PhaseEntry((0, 1, 2))
    entry.entered(0)
    assert entry.lose(2)
    assert not entry.fail(1, "cut")
    assert not entry.lose(0)
    assert (entry.answered, entry.succeeded, entry.inside, entry.lost) == (True, False, set(), {0, 2})
    assert entry.trouble == "rank 2 is gone"


def test_a_stranger_changes_nothing() -> None:
    entry = PhaseEntry((0,))
    entry.entered(7)
    assert not entry.fail(7, "?")
    assert not entry.lose(7)
    assert (entry.answered, entry.inside, entry.trouble) == (False, set(), "")


@pytest.mark.parametrize(("together", "succeeded"), [(True, False), (False, True)])
def test_a_loss_matters_to_those_that_stay_together(together: bool, succeeded: bool) -> None:
    """The servers have what they need once the source has entered."""
    entry = PhaseEntry((0, 1), source=0, together=together)
    entry.entered(0)
    entry.lose(1)
    assert entry.succeeded == succeeded


def test_without_its_source_no_phase_succeeds() -> None:
    entry = PhaseEntry((0, 1), source=0, together=False)
    entry.entered(1)
    entry.lose(0)
    assert (entry.answered, entry.succeeded) == (True, False)


@pytest.mark.parametrize(("first", "following"), PAIRS)
def test_a_member_may_die_at_any_moment_of_a_switch(first: str, following: str) -> None:
    """Nobody steps before all have entered, and all have the newest state: see `FakeWorker`."""
    for seed, tick in ((seed, tick) for seed in range(3) for tick in range(20, 90)):
        job = FakeJob(first, 3, 60, 3, EPOCHS, seed)
        job.run({20: f"switch {following}", tick + 1: "kill 2"})
        processed_once(job)


@given(
    seed=seeds,
    pair=st.sampled_from(PAIRS),
    kills=st.dictionaries(st.integers(21, 90), st.integers(0, 3), min_size=2, max_size=3),
    joins=st.lists(st.integers(21, 90), max_size=1),
)
@settings(max_examples=120, derandomize=True, deadline=None)
def test_several_may_die_and_one_may_come(
    seed: int, pair: tuple[str, str], kills: dict[int, int], joins: list[int]
) -> None:
    job = FakeJob(pair[0], 4, 80, 3, EPOCHS, seed)
    events = {tick: f"kill {rank}" for tick, rank in kills.items()} | dict.fromkeys(joins, "join 4")
    job.run(events | {20: f"switch {pair[1]}"})
    if any(worker.alive for worker in job.workers.values()):
        processed_once(job)


class Office:
    """Keeps what the coordinator does; nothing is answered unless the test does it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, object]] = []
        self.cuts: list[str] = []
        self.given_up: list[str] = []
        self.losses: list[tuple[int, str]] = []

    def send(self, worker: int, message: object) -> None:
        self.sent.append((worker, message))

    def send_all(self, workers: Sequence[int], message: object) -> None:
        self.sent += [(worker, message) for worker in workers]

    def cut(self, reason: str, after: int = 0) -> None:
        self.cuts.append(reason)

    def tell_loss(self, worker: int, reason: str) -> None:
        self.losses.append((worker, reason))

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)

    def begin_phase(self, *_: object) -> None:
        """Nothing is recorded."""

    record = wake = drop = begin_phase

    def phases(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Who was sent which phase, with which members."""
        return [(worker, m.number, m.members) for worker, m in self.sent if isinstance(m, Phase)]


@pytest.fixture
def office() -> Office:
    return Office()


def started(office: Office, workers: int, policy: str = "bsp") -> Coordinator:
    """Everyone has been told of the first phase."""
    coordinator = Coordinator(parse_policy(policy), workers, office, lambda: 0.0)  # type: ignore[arg-type]
    for rank in range(workers):
        coordinator.job.connect(rank)
    for rank in range(workers):
        coordinator.receive(rank, Ready(0, 100, 2))
    return coordinator


def test_nobody_steps_before_the_last_has_entered(office: Office) -> None:
    coordinator = started(office, 3)
    for rank in (2, 0):
        coordinator.receive(rank, Entered(1))
    assert not any(isinstance(message, SynchronousSteps) for _, message in office.sent)
    coordinator.receive(1, Entered(1))
    assert [worker for worker, message in office.sent if isinstance(message, SynchronousSteps)] == [0, 1, 2]


def test_another_phase_opens_when_all_stand(office: Office) -> None:
    coordinator = started(office, 3)
    coordinator.receive(0, Entered(1))
    coordinator.lost(2, "died")
    assert office.cuts == ["rank 2 is gone"]
    assert {number for _, number, _ in office.phases()} == {1}, "rank 1 is still on its way"
    coordinator.receive(1, CollectiveFailed(1, 0, "cut"))
    assert office.phases()[3:] == [(0, 2, (0, 1)), (1, 2, (0, 1))]
    assert office.cuts == ["rank 2 is gone"]


def test_an_answer_to_an_older_phase_is_none(office: Office) -> None:
    coordinator = started(office, 2)
    coordinator.receive(0, CollectiveFailed(1, 0, "?"))
    coordinator.receive(1, CollectiveFailed(1, 0, "cut"))
    for rank in range(2):
        coordinator.receive(rank, Entered(1))
        coordinator.receive(rank, CollectiveFailed(1, 0, "late"))
    assert coordinator.phase == 2
    assert not any(isinstance(message, SynchronousSteps) for _, message in office.sent)


def test_the_same_members_do_not_try_for_ever(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        coordinator = started(office, 2)
        for attempt in range(1, ATTEMPTS + 1):
            assert not office.given_up
            coordinator.receive(0, CollectiveFailed(attempt, 0, "no route to 10.0.0.2"))
            coordinator.receive(1, CollectiveFailed(attempt, 0, "cut"))
    assert office.given_up == [
        "the workers (0, 1) could not form a group in 3 attempts; see that they reach each other's addresses "
        "(rank 0: no route to 10.0.0.2)"
    ]
    assert coordinator.phase == ATTEMPTS


def test_what_all_have_found_is_logged_once(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        coordinator = started(office, 4)
        for rank, reason in enumerate(
            ("no way to host 2", "no way to host 2", "given up: rank 0: no way to host 2", "?")
        ):
            coordinator.receive(rank, CollectiveFailed(1, 0, reason))
    failed = [message for message in caplog.messages if "exchange failed" in message]
    assert [message.partition(":")[0] for message in failed] == ["rank 0", "rank 3"]


def test_a_loss_is_no_attempt(office: Office) -> None:
    coordinator = started(office, ATTEMPTS + 3)
    for attempt in range(1, ATTEMPTS + 2):
        gone = ATTEMPTS + 3 - attempt
        coordinator.lost(gone, "died")
        for rank in range(gone):
            coordinator.receive(rank, CollectiveFailed(attempt, 0, "cut"))
    assert not office.given_up
    assert coordinator.phase == ATTEMPTS + 2


@pytest.mark.parametrize(("message", "reason"), [(Bye(early=True), "removed"), (Bye(), "finished")])
def test_who_leaves_between_phases_is_told_as_who_leaves_in_one(office: Office, message: Bye, reason: str) -> None:
    coordinator = Coordinator(parse_policy("bsp"), 3, office, lambda: 0.0)  # type: ignore[arg-type]
    for rank in range(3):
        coordinator.job.connect(rank)
    coordinator.receive(2, message)
    coordinator.lost(1, "died")
    assert office.losses == [(2, reason), (1, "died")]


@pytest.mark.parametrize("policy", ["bsp", "balanced", "selsync:0.05", "local:3", "esync", "asp"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_newcomer_may_be_gone_before_its_first_phase(office: Office, policy: str, leaves: bool) -> None:
    coordinator = started(office, 2, policy)
    for rank in range(2):
        coordinator.receive(rank, Entered(1))
    coordinator.job.connect(2)
    coordinator.receive(2, Ready(0, 100, 2))
    if leaves:
        coordinator.receive(2, Bye(early=True))
    else:
        coordinator.lost(2, "died")
    assert office.losses == [(2, "removed" if leaves else "died")]
    assert office.cuts == [], "nobody who steps has to do with it"


@pytest.mark.parametrize("policy", ["bsp", "balanced", "selsync:0.05", "local:3", "esync", "asp"])
def test_a_newcomer_may_die_at_any_moment(policy: str) -> None:
    for seed, tick in ((seed, tick) for seed in range(3) for tick in range(1, 60)):
        job = FakeJob(policy, 2, 60, 3, EPOCHS, seed)
        job.run({10: "join 2", 10 + tick: "kill 2"})
        processed_once(job)
