"""A worker that is asked to leave goes where all stand, and no step of anybody is dropped."""

import pytest

from polyrhythm.runtime.wire.protocol import AtEnd, Bye, Entered, Over, Phase, Stepped, Token
from tests.runtime.coordinator.test_coordinator import EPOCHS, processed_once
from tests.runtime.coordinator.test_phase_entry import Office, started
from tests.runtime.fake_job import FakeJob


@pytest.mark.parametrize("policy", ["bsp", "local:4", "balanced"])
def test_it_is_let_go_when_all_stand_and_nothing_is_dropped(policy: str) -> None:
    office = Office()
    coordinator = started(office, 3, policy)
    for rank in range(3):
        coordinator.receive(rank, Entered(1))
    coordinator.receive(1, AtEnd(0, 1, stops=True))
    while not any(isinstance(message, Token) and message.stop for _, message in office.sent):
        step = coordinator.job.samples // 6
        for rank in range(3):
            coordinator.receive(rank, Stepped(step, 2, 0.1, step + 1))
    (last,) = {message.step for _, message in office.sent if isinstance(message, Token) and message.stop}
    for step in range(coordinator.job.samples // 6, last + 1):
        for rank in (1, 0, 2):
            assert not any(isinstance(message, Over) for _, message in office.sent), "it could leave them in a step"
            coordinator.receive(rank, Stepped(step, 2, 0.1, step + 1))
    assert [worker for worker, message in office.sent if isinstance(message, Over)] == [1]
    assert coordinator.phase == 1
    coordinator.receive(1, Bye(early=True))
    phases = [message.members for _, message in office.sent if isinstance(message, Phase) and message.number == 2]
    assert phases == [(0, 2)] * 2
    assert coordinator.job.samples == 6 * (last + 1)
    assert not +coordinator.job.ledger.dropped


def test_a_step_that_it_has_not_begun_is_not_dropped_where_it_leaves_at_once() -> None:
    coordinator = started(Office(), 3, "asp")
    for rank in range(3):
        coordinator.receive(rank, Entered(1))
    coordinator.receive(1, Bye(early=True))
    assert not +coordinator.job.ledger.dropped
    coordinator.lost(2, "died")
    assert coordinator.job.ledger.dropped == {"left": 1}


@pytest.mark.parametrize("policy", ["bsp", "local:3", "post-local:2", "selsync:0.05", "diloco:4", "balanced"])
def test_others_may_leave_die_or_switch_meanwhile(policy: str) -> None:
    for seed, tick in ((seed, tick) for seed in range(2) for tick in range(1, 60, 7)):
        for other in ({}, {tick + 3: "drain 1"}, {tick + 2: "switch bsp"}, {tick + 4: "kill 1"}):
            job = FakeJob(policy, 4, 80, 3, EPOCHS, seed)
            job.run({tick: "drain 2", **other})
            processed_once(job)
            assert "died" in [reason for _, reason in job.losses] or not +job.coordinator.job.ledger.dropped
