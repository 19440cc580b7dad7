"""Workers that go on without an answer, and a word to stop that is under way to one of them."""

from typing import Any, ClassVar

import pytest

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy, Proceed, Report, Sync, Traits
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.members.proposal import nobody
from polyrhythm.runtime.wire.protocol import (
    AtEnd,
    Entered,
    Halt,
    Halted,
    LocalStepDone,
    Ready,
    TakePart,
    TookPart,
)
from tests.runtime.coordinator.test_phase_entry import Office

ESYNC = parse_policy("esync:blocking=false")


class Alone(Policy[None]):
    """Who has made a step meets all others, who contribute nothing."""

    name: ClassVar[str] = "alone"
    traits = Traits("coordinator", frozenset({"replicas"}))

    def init(self, cluster: Cluster) -> None:
        """Nothing is remembered."""

    def decide(self, state: None, event: Event) -> tuple[None, Decisions]:
        if isinstance(event, Joined):
            return None, (Proceed(event.workers, "replicas"),)
        return None, (Sync((event.worker,), "deltas"),) if isinstance(event, Report) else ()


def stepping(office: Office, workers: int = 2, policy: Policy[Any] = ESYNC) -> Coordinator:
    """Workers with data of their own have entered a phase with local steps."""
    coordinator = Coordinator(policy, workers, office, lambda: 0.0)  # type: ignore[arg-type]
    for rank in range(workers):
        coordinator.job.connect(rank)
    for rank in range(workers):
        coordinator.receive(rank, Ready(0, 100, 2, own=True))
    for rank in range(workers):
        coordinator.receive(rank, Entered(1))
    return coordinator


def sent(office: Office, kind: type) -> list[int]:
    return [worker for worker, message in office.sent if isinstance(message, kind)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_that_is_out_of_data_answers_the_word_to_stop(order: tuple[int, int]) -> None:
    """The word and `AtEnd` pass each other. The policy has let it go; the others go on."""
    office = Office()
    coordinator = stepping(office)
    for rank in (0, 1):
        coordinator.receive(rank, LocalStepDone(0, 2, 1.0, 0.0))
    assert sent(office, Halt) == [0, 1]
    coordinator.receive(0, AtEnd(0, 1, early=True))
    for rank in order:
        coordinator.receive(rank, Halted(1))
    assert sent(office, TakePart) == [0, 1]
    for rank in (0, 1):
        coordinator.receive(rank, TookPart(1))
    coordinator.receive(1, LocalStepDone(1, 2, 1.0, 0.0))
    assert office.losses == []


def test_a_switch_waits_for_its_answer_only() -> None:
    office = Office()
    coordinator = stepping(office)
    coordinator.receive(0, LocalStepDone(0, 2, 1.0, 0.0))
    coordinator.choice.propose(parse_policy("asp"), nobody)
    assert sent(office, Halt) == [0, 1]
    coordinator.receive(0, AtEnd(0, 1, early=True))
    coordinator.receive(1, Halted(0))
    assert sent(office, TakePart) == []
    coordinator.receive(0, Halted(1))
    assert sent(office, TakePart) == [0, 1]
    for rank in (0, 1):
        coordinator.receive(rank, TookPart(1))
    assert coordinator.phase == 2


def test_where_all_members_contribute_the_word_to_meet_names_none() -> None:
    """Named in what is sent to each, 256 members took most of the time in which all are told."""
    office = Office()
    coordinator = stepping(office)
    for rank in (0, 1):
        coordinator.receive(rank, LocalStepDone(0, 2, 1.0, 0.0))
    for rank in (0, 1):
        coordinator.receive(rank, Halted(1))
    assert [merge.sync for _, merge in office.sent if isinstance(merge, TakePart)] == 2 * [Sync((), "deltas")]


def test_it_names_those_who_do_where_they_are_some() -> None:
    office = Office()
    coordinator = stepping(office, policy=Alone())
    coordinator.receive(1, LocalStepDone(0, 2, 1.0, 0.0))
    assert [merge.sync.workers for _, merge in office.sent if isinstance(merge, TakePart)] == [(1,), (1,)]
