"""A generation that is given up while it is being built."""

import os
import signal
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives import membership, switchable_group
from polyrhythm.runtime.collectives.gloo_connections import GlooSockets
from polyrhythm.runtime.collectives.hosts import hierarchy
from polyrhythm.runtime.collectives.membership import Building
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.testing.processes import run_workers, workers

FOREVER = timedelta(hours=1)
"""Longer than any test: nothing here ends by a limit."""


class Slow:
    """A generation that stands when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        self.did: list[str] = []
        Slow.made = self
        self.prefix, self.gathers = arguments[1], arguments[-1]
        Slow.begun.set()
        assert Slow.released.wait(60)

    def abort(self, reason: str) -> None:
        self.did.append("abort")

    def close(self) -> None:
        self.did.append("close")
        Slow.closed.set()

    made: "Slow"
    begun, released, closed = threading.Event(), threading.Event(), threading.Event()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    for event in (Slow.begun, Slow.released, Slow.closed):
        event.clear()
    for module in (membership, switchable_group):
        monkeypatch.setattr(module, "Generation", Slow)
    return Slow


def building(gathers: bool = False) -> Building:
    make = partial(membership.Generation, HashStore(), "generation-3", (0, 1), 0, FOREVER, FOREVER, gathers)
    return Building("generation-3", (0, 1), make)


@pytest.mark.parametrize("gathers", [False, True])
def test_what_was_built_is_handed_out(slow: type[Slow], gathers: bool) -> None:
    slow.released.set()
    one = building(gathers)
    built: Any = one.wait()
    assert built is slow.made
    one.abort("too late")
    assert (slow.made.gathers, slow.made.did) == (gathers, [])


def test_who_waits_is_let_go_and_what_comes_late_is_closed(slow: type[Slow]) -> None:
    one = building()
    assert slow.begun.wait(60)
    one.abort("rank 1 is gone")
    one.abort("rank 2 is gone, too")
    reason = r"generation 'generation-3' among \(0, 1\) was given up before it stood: rank 1 is gone"
    with pytest.raises(GroupError, match=reason):
        one.wait()
    slow.released.set()
    assert slow.closed.wait(60)
    assert slow.made.did == ["abort", "close"]


def test_a_group_remembers_what_was_given_up_before_it_began(slow: type[Slow]) -> None:
    group = SwitchGroup(HashStore(), 0, (0, 1))
    group.abort("rank 1 is gone", prefix="generation-4")
    with pytest.raises(GroupError, match="rank 1 is gone"):
        group.set_generation((0, 1), "generation-4", connect_timeout=FOREVER)
    assert group.generation is None
    slow.released.set()
    assert group.set_generation((0, 1), "generation-5", connect_timeout=FOREVER) is slow.made  # type: ignore[comparison-overlap]


def questions(rank: int, port: int) -> list[str]:
    """What a member of three waits for at the store, beside gloo, until its generation stands."""
    asked = list[str]()

    class Counted(PrefixStore):
        def get(self, key: str) -> bytes:
            asked.append("get")
            return super().get(key)

        def multi_get(self, keys: list[str]) -> list[bytes]:
            asked.append("multi_get")
            return super().multi_get(keys)

        def wait(self, *arguments: Any) -> None:
            asked.append("wait")
            super().wait(*arguments)

    membership.PrefixStore = hierarchy.PrefixStore = Counted  # type: ignore[attr-defined]
    generation = membership.Generation(TCPStore("127.0.0.1", port, is_master=False), "all", range(3), rank)
    until_here = [*asked]
    generation.close()
    return until_here


def test_members_on_one_host_ask_the_store_twice() -> None:
    """Each question takes a way to the coordinator and back, in every switch."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert run_workers(questions, 3, store.port) == [["multi_get"], ["multi_get"] * 2, ["multi_get"] * 2]


LIMIT = timedelta(seconds=2)
"""After which a building that was given up ends by itself."""


def survivor(rank: int, port: int) -> tuple[str, float, str | None]:
    """One dies when gloo has connected all. What the others were told, and what they sum up without it.

    The thread in which the first group was built still waits when the second one stands; its end must not be felt.
    """
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
    dist.init_process_group("polyrhythm", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert isinstance(group, SwitchGroup)
    group.bind(store, rank)
    if rank == 2:
        GlooSockets.meet = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign, assignment]
    else:
        threading.Thread(target=abort_when_told, args=(group, port)).start()
    with pytest.raises(GroupError) as told:
        group.set_generation((0, 1, 2), "first", connect_timeout=FOREVER)
    threads = [thread for thread in threading.enumerate() if thread.name == "polyrhythm-building"]
    group.bind(TCPStore("127.0.0.1", port, is_master=False), rank)
    group.set_generation((0, 1), "second")
    for thread in threads:
        thread.join()
    total = torch.ones(1, dtype=torch.float64)  # which gloo sums up
    group.allreduce([total]).wait()
    return str(told.value), total.item(), group.failure


def abort_when_told(group: SwitchGroup, port: int) -> None:
    """As the coordinator has it done, from a thread."""
    TCPStore("127.0.0.1", port, is_master=False).wait(["gone"])
    group.abort("rank 2 is gone", prefix="first")


def test_the_next_group_feels_nothing_of_one_that_was_given_up() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with workers(survivor, 3, store.port) as running:
        running.processes[2].join()
        store.set("gone", "rank 2")
        outcomes = running.join(60, leave=[2])
    assert [outcome.traceback for outcome in outcomes] == ["", ""]
    for told, total, failure in (outcome.value for outcome in outcomes):
        assert "was given up before it stood: rank 2 is gone" in told
        assert (total, failure) == (2.0, None)
