import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from polyrhythm.runtime.collectives.death_watch import DeathWatch
from polyrhythm.runtime.collectives.gloo_connections import GlooSockets

PATIENCE_S = 20


@dataclass
class Group:
    """Two members at the other ends of two connections."""

    watched: list[socket.socket] = field(default_factory=list)
    members: list[socket.socket] = field(default_factory=list)
    store: HashStore = field(default_factory=HashStore)
    heard: list[str] = field(default_factory=list)
    lost: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for _ in range(2):
            ours, theirs = socket.socketpair()
            self.watched.append(ours)
            self.members.append(theirs)

    def watch(self) -> DeathWatch:
        return DeathWatch(FixedSockets(self.watched), PrefixStore("generation", self.store), self.hear)

    def hear(self, reason: str) -> None:
        self.heard.append(f"{reason}, {sum(member.fileno() < 0 for member in self.members)} ended")
        self.lost.set()


class FixedSockets(GlooSockets):
    def __init__(self, connections: list[socket.socket]) -> None:
        super().__init__(set())
        self._fixed = connections

    def duplicate(self) -> list[socket.socket]:
        return [connection.dup() for connection in self._fixed]


@pytest.fixture
def group() -> Iterator[Group]:
    group = Group()
    yield group
    for end in (*group.watched, *group.members):
        end.close()


def test_an_end_without_goodbye_is_a_loss(group: Group) -> None:
    watch = group.watch()
    group.members[1].close()
    assert group.lost.wait(PATIENCE_S)
    watch.stop()
    assert group.heard == ["a member is gone: its connection has ended, 1 ended"]


def test_an_end_after_a_goodbye_is_not(group: Group) -> None:
    watch, leaver = group.watch(), Group(store=group.store).watch()
    leaver.say_goodbye()
    group.members[0].close()
    group.members[1].close()
    assert group.lost.wait(PATIENCE_S)
    watch.stop()
    leaver.stop()
    assert group.heard == ["a member is gone: its connection has ended, 2 ended"]


def test_after_stopping_nothing_is_heard_and_nothing_held(group: Group) -> None:
    watch = group.watch()
    watch.stop()
    watch.stop()
    group.watched[0].close()
    assert group.members[0].recv(1) == b""
    assert group.heard == []


def test_a_thread_may_stop_itself(group: Group) -> None:
    stopped = threading.Event()

    def stop(reason: str) -> None:
        watch.stop()
        stopped.set()

    watch = DeathWatch(FixedSockets(group.watched), group.store, stop)
    group.members[0].close()
    assert stopped.wait(PATIENCE_S)
