"""What is behind a script's DistributedDataParallel from phase to phase, on real processes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed import HashStore  # type: ignore[attr-defined]

from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.runtime.script.wrapper import Lane, ScriptDDP, become_wrapper, is_wrapper
from polyrhythm.testing.processes import run_workers
from tests.runtime.collectives.test_switchable_group import connect

MEMBERS = 3
CHANGES = ("forgotten", "made alone", "another parameter", "another state", "failed")


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
    return lane.inner is before, lane.number


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
    elif rank == 1 and change == "another parameter":
        lane.module.weight = nn.Parameter(lane.module.get_parameter("weight").detach().clone())
    elif rank == 1 and change == "another state":
        assert lane.inner is not None
        lane.inner._has_rebuilt_buckets = False  # as of a member that is a step behind
    elif change == "failed":
        group.abort("a member is lost")
    phases.append(goes_on(lane, group, "b"))
    return [*phases, goes_on(lane, group, "c")]


@pytest.mark.parametrize(
    ("change", "kept"),
    [("", [True] * 3), *((change, [True, False, True]) for change in CHANGES)],
)
def test_members_go_on_with_what_all_have_and_else_begin_anew(store: TCPStore, change: str, kept: list[bool]) -> None:
    ranks = run_workers(changing_worker, MEMBERS, MEMBERS, store.port, change)
    assert all(phases == ranks[0] for phases in ranks)
    assert [same for same, _ in ranks[0]] == kept
    numbers = [number for _, number in ranks[0]]
    assert (numbers[0] == numbers[1]) == kept[1]
    assert numbers[1] == numbers[2]


def alone() -> SwitchGroup:
    return SwitchGroup(HashStore(), 0, [0])


def wrapped(module: nn.Module | None = None) -> tuple[ScriptDDP, Lane]:
    """What a script has after its first step, between two phases."""
    ddp = ScriptDDP.__new__(ScriptDDP)
    lane = become_wrapper(ddp, module or nn.Linear(4, 2), alone(), {})
    assert is_wrapper(ddp)
    step(lane)
    lane.close()
    return ddp, lane


def test_passes_are_followed_on_the_group_of_the_phase() -> None:
    _, lane = wrapped()
    lane.open(alone())
    assert lane.inner is not None
    lane.inner(torch.ones(1, 4)).sum().backward()
    assert lane.inner.passes.played == "fb"


def test_a_hook_that_comes_between_two_phases_is_called() -> None:
    ddp, lane = wrapped()
    buckets = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        buckets.append(bucket.index())
        future = torch.futures.Future[torch.Tensor]()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    lane.open(alone())
    step(lane)
    assert buckets == [0]


def test_so_is_a_static_graph() -> None:
    ddp, lane = wrapped()
    ddp._set_static_graph()
    lane.open(alone())
    assert lane.inner is not None
    assert lane.inner.static_graph
    step(lane)


def test_a_backward_pass_that_was_broken_off_is_forgotten() -> None:
    _, lane = wrapped(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    lane.open(alone())
    assert lane.inner is not None
    broken = lane.module.get_parameter("0.weight").register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(ZeroDivisionError):
        step(lane)
    broken.remove()
    lane.close()
    lane.open(alone())
    step(lane)


def fail(gradient: torch.Tensor) -> None:
    raise ZeroDivisionError
