"""From whom the job's state is taken when a phase has ended before its time."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.state_holders import StateHolders
from polyrhythm.runtime.wire.protocol import Bye, CollectiveFailed, Entered, EpochDone, Phase, Ready, Stepped
from tests.runtime.coordinator.test_phase_entry import Office, started


def opened_behind_a_step_of_one(office: Office, policy: str) -> Coordinator:
    """Rank 2 leaves, and its connections with it, when only rank 1 has got what it has sent for step 1."""
    coordinator = started(office, 3, policy)
    for rank in range(3):
        coordinator.receive(rank, Entered(1))
    for rank in range(3):
        coordinator.receive(rank, Stepped(0, 2, 0.1, 1))
    for rank in (2, 1):
        coordinator.receive(rank, Stepped(1, 2, 0.1, 2))
    coordinator.receive(2, Bye(early=True))
    coordinator.receive(0, CollectiveFailed(1, 1, "cut"))
    coordinator.receive(1, CollectiveFailed(1, 2, "cut"))
    return coordinator


@pytest.mark.parametrize("policy", ["bsp", "balanced", "tests.restless:Restless"])
def test_who_has_the_last_step_that_counts(policy: str) -> None:
    office = Office()
    coordinator = opened_behind_a_step_of_one(office, policy)
    opened = [message for _, message in office.sent if isinstance(message, Phase)][3:]
    assert [(phase.members, phase.contributors) for phase in opened] == [((0, 1), (1,))] * 2
    assert coordinator.job.samples == 12, "step 1 counts for all, as rank 1 has it from all"


@pytest.mark.parametrize("policy", ["bsp", "balanced"])
def test_what_only_one_had_is_lost_with_it(policy: str) -> None:
    office = Office()
    coordinator = opened_behind_a_step_of_one(office, policy)
    coordinator.lost(1, "died")
    coordinator.receive(0, CollectiveFailed(2, 0, "cut"))
    phase = [message for _, message in office.sent if isinstance(message, Phase)][-1]
    assert (phase.members, phase.number) == ((0,), 3)
    assert coordinator.job.samples == 6
    assert coordinator.job.workload.left == 94


def test_whose_state_is_the_jobs_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """However many newcomers ask for it."""
    job: Any = SimpleNamespace(present=(0, 1))
    holders = StateHolders(job)
    holders.left_early(1)
    assert [holders._of_early() for _ in range(2)] == [(1,), (1,)]
    assert len(caplog.messages) == 1


def third_epoch(office: Office, policy: str) -> Coordinator:
    """Two workers are in it."""
    coordinator = started(office, 2, policy)
    for rank in range(2):
        coordinator.receive(rank, Entered(1))
    coordinator.job.epoch, coordinator.job.samples, coordinator.job.version = 2, 40, 9
    return coordinator


@pytest.mark.parametrize(("policy", "served"), [("asp", True), ("bsp", False)])
def test_a_newcomer_that_passes_epochs_is_told_whether_servers_have_the_parameters(
    policy: str, served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    office = Office()
    coordinator = third_epoch(office, policy)
    coordinator.job.connect(2)
    for epoch in (0, 1):
        coordinator.receive(2, Ready(epoch, 100, 2))
    told = [message for rank, message in office.sent if rank == 2]
    assert told == [EpochDone(epoch, 9, served=served) for epoch in (0, 1)]
    line = (
        "rank 2 passes 2 epochs that are over with the parameters that it began with; what it saves or evaluates there "
        "is not the job's"
    )
    assert [record.getMessage() for record in caplog.records] == [line] * (not served)
