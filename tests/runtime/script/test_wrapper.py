"""What is behind a script's DistributedDataParallel from phase to phase, on real processes."""

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.testing.processes import run_workers
from tests.runtime.collectives.test_switchable_group import connect

MEMBERS = 3


def step(lane: Lane) -> None:
    assert lane.inner is not None
    lane.inner(torch.ones(1, 4)).sum().backward()
    lane.inner.passes.stepped()


def goes_on(lane: Lane, group: SwitchGroup, name: str) -> tuple[bool, int]:
    """Whether the next phase has the same one, and its number."""
    before = lane.inner
    lane.close()
    group.set_generation(range(MEMBERS), name)
    lane.open(group)
    assert lane.inner is not None
    step(lane)
    return lane.inner is before, lane.inner.number


def changing_worker(rank: int, size: int, port: int, change: str) -> list[tuple[bool, int]]:
    _, group = connect(rank, size, port)
    lane = Lane(nn.Linear(4, 2), {})
    lane.open(group)
    step(lane)
    phases = [goes_on(lane, group, "a")]
    if rank == 1 and change == "forgotten":
        lane.close()
        lane.forget_buckets()
    elif rank == 1 and change == "made alone":
        lane = Lane(nn.Linear(4, 2), {})
        lane.open(SwitchGroup(group.store, 1, [1]))
        step(lane)
    elif change == "failed":
        group.abort("a member is lost")
    phases.append(goes_on(lane, group, "b"))
    return [*phases, goes_on(lane, group, "c")]


@pytest.mark.parametrize(
    ("change", "kept"),
    [("", [True] * 3), *((change, [True, False, True]) for change in ("forgotten", "made alone", "failed"))],
)
def test_members_go_on_with_what_all_have_and_else_begin_anew(store: TCPStore, change: str, kept: list[bool]) -> None:
    ranks = run_workers(changing_worker, MEMBERS, MEMBERS, store.port, change)
    assert all(phases == ranks[0] for phases in ranks)
    assert [same for same, _ in ranks[0]] == kept
    numbers = [number for _, number in ranks[0]]
    assert (numbers[0] == numbers[1]) == kept[1]
    assert numbers[1] == numbers[2]
