"""What a lost, hanging or late member does to a switchable group, on real gloo processes."""

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from polyrhythm.errors import GroupError, UsageError
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives import ops as collectives
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.testing.processes import ProcessOutcome, run_workers, workers
from tests.runtime.ddp_models import Trainer, digest, network
from tests.runtime.pretended_hosts import live_on

LOST_AT = 3
LIMIT = timedelta(seconds=25)
"""Of one collective: longer than any test takes, so that nothing here is found out by waiting."""


def connect(rank: int, size: int, port: int) -> tuple[TCPStore, SwitchGroup]:
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("polyrhythm", store=store, rank=rank, world_size=size, timeout=LIMIT)
    group = dist.group.WORLD
    assert isinstance(group, SwitchGroup)
    return store, group


def synchronous(trainer: Trainer, group: SwitchGroup, steps: int) -> tuple[int, int]:
    """Steps in synchronous mode that drop a poisoned one and go on with the survivors; steps applied, and dropped."""
    applied = dropped = 0
    while applied + dropped < steps:
        trainer.optimizer.zero_grad()
        trainer.backward()
        if group.failure is None:
            trainer.optimizer.step()
            applied += 1
        else:
            dropped += 1
            mend(trainer, group, applied)
    return applied, dropped


def mend(trainer: Trainer, group: SwitchGroup, applied: int) -> None:
    """The next generation, among those who are left, with the most advanced survivor's state."""
    generation = group.set_generation([rank for rank in group.members if rank != 2], "survivors")
    steps = torch.zeros(generation.size)
    steps[generation.rank] = applied
    collectives.all_reduce(generation, steps)
    momenta = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    tensors = [*trainer.model.parameters(), *trainer.model.buffers(), *momenta]
    hand_over_tensors(generation, tensors, int(steps.argmax()))


def lost_worker(
    rank: int, port: int, how: str, batch_norm: bool, told: bool, width: int = 64, hosts: tuple[int, ...] = ()
) -> dict[str, Any]:
    if hosts:
        live_on(hosts[rank])
    store, group = connect(rank, 4, port)
    trainer = Trainer(group, rank, network(batch_norm, width), gradient_as_bucket_view=batch_norm)
    for _ in range(LOST_AT):
        trainer.step()
        if told:
            group.step()
    if rank == 2:
        next(trainer.model.parameters()).register_hook(lambda gradient: lose(how, store))  # type: ignore[no-untyped-call]
    if rank == 0 and how == "hang":
        threading.Thread(target=abort_when_told, args=(group, port)).start()
    begin = time.monotonic()
    _, dropped = synchronous(trainer, group, 6)
    assert group.failure is None, group.failure
    return {
        "dropped": dropped,
        "parameters": digest(trainer.model.parameters()),
        "seconds": time.monotonic() - begin,
    }


def lose(how: str, store: TCPStore) -> None:
    """Go in the middle of a backward pass, when some buckets are on their way."""
    store.set("lost", how)
    os.kill(os.getpid(), signal.SIGSTOP if how == "hang" else signal.SIGKILL)


def abort_when_told(group: SwitchGroup, port: int) -> None:
    """As the coordinator has it done when it has missed heartbeats; one survivor is enough."""
    TCPStore("127.0.0.1", port, is_master=False).wait(["lost"])
    group.abort("rank 2 is lost", prefix="generation-0")


def survivors(function: Any, *args: Any) -> list[ProcessOutcome]:
    with workers(function, 4, *args) as running:
        return running.join(60, leave=[2])


@pytest.mark.parametrize(
    ("how", "batch_norm", "told", "width"),
    [("die", True, False, 300), ("die", False, True, 64), ("hang", True, True, 64), ("hang", False, False, 300)],
)
def test_survivors_of_a_lockstep_step_go_on_together(
    store: TCPStore, how: str, batch_norm: bool, told: bool, width: int
) -> None:
    """Also if the group is told where steps end, and waits for the last collective of each as it is launched, and if
    buckets are so long that they are lent.
    """
    check_survivors(survivors(lost_worker, store.port, how, batch_norm, told, width))


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 1, 0)], ids=["leader", "member", "alone"])
@pytest.mark.parametrize(("how", "told"), [("die", False), ("hang", True)])
def test_so_do_those_on_several_hosts(store: TCPStore, how: str, told: bool, hosts: tuple[int, ...]) -> None:
    """Whoever is lost: the leader of a host, one that it leads, or one that is alone there."""
    check_survivors(survivors(lost_worker, store.port, how, True, told, 64, hosts))


def check_survivors(outcomes: list[ProcessOutcome]) -> None:
    assert [outcome.traceback for outcome in outcomes] == ["", "", ""]
    values = [outcome.value for outcome in outcomes]
    assert [value["dropped"] for value in values] == [1, 1, 1]
    assert len({value["parameters"] for value in values}) == 1
    assert max(value["seconds"] for value in values) < LIMIT.total_seconds(), "waited for the limit"


def apart_worker(rank: int, port: int) -> tuple[str, bool]:
    """A member dies while all go their own ways."""
    _, group = connect(rank, 4, port)
    trainer = Trainer(group, rank)
    trainer.steps(2)
    group.set_local()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    trainer.steps(2 + rank)
    generation = group.set_generation([0, 1, 3], "survivors")
    averager.Averager(trainer.model).mean(generation)
    trainer.optimizer.state.clear()
    trainer.steps(3)
    return digest(trainer.model.parameters()), group.failure is None


def test_a_death_apart_is_nothing_to_the_others(store: TCPStore) -> None:
    outcomes = survivors(apart_worker, store.port)
    assert [outcome.traceback for outcome in outcomes] == ["", "", ""]
    assert len({outcome.value for outcome in outcomes}) == 1
    assert outcomes[0].value[1]


def absent_worker(rank: int, port: int) -> tuple[str, str]:
    """Rank 1 never comes to the next generation, and rank 0 is not asked to the last."""
    _, group = connect(rank, 2, port)
    if rank == 1:
        return "", ""
    with pytest.raises(GroupError) as late:
        group.set_generation([0, 1], "late", connect_timeout=timedelta(seconds=0.5))
    assert group.generation is None
    with pytest.raises(UsageError) as foreign:
        group.set_generation([1, 7], "foreign")
    return str(late.value), str(foreign.value)


def test_an_epoch_that_nobody_else_comes_to(store: TCPStore) -> None:
    late, foreign = run_workers(absent_worker, 2, store.port)[0]
    assert "generation 'late': worker 0 could not meet all of (0, 1) within 0.5 s" in late
    assert "worker 0 is not among the members (1, 7)" in foreign


def forking_worker(rank: int, port: int) -> tuple[int, int, bool]:
    """A forked child holds none of its parent's connections, gloo's and the watch's; the parent goes on with them."""
    _, group = connect(rank, 2, port)
    assert group.generation is not None
    held = connections(group.generation)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes([connections(group.generation)]))
        os._exit(0)
    os.waitpid(child, 0)
    total = torch.ones(1)
    dist.all_reduce(total)
    return held, os.read(read, 1)[0], total.item() == 2 and group.failure is None


def connections(generation: Generation) -> int:
    count = 0
    for _, connection in generation.health._sockets._connections():
        connection.close()
        count += 1
    return count


def test_forked_children_do_not_hide_a_death(store: TCPStore) -> None:
    assert run_workers(forking_worker, 2, store.port) == [(2, 0, True)] * 2
