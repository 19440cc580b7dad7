import errno
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from polyrhythm.runtime.collectives import gloo_connections
from polyrhythm.runtime.collectives.death_watch import (
    GOODBYES,
    INFO_BYTES,
    PROBES,
    RETRANSMITS,
    SINCE_ANSWERED,
    DeathWatch,
    Unanswered,
    try_when_idle,
    waits,
)
from polyrhythm.runtime.collectives.gloo_connections import GlooSockets, has_ended
from polyrhythm.runtime.collectives.group_health import GroupHealth

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
        sockets = FixedSockets(self.watched)
        return DeathWatch(sockets, PrefixStore("generation", self.store), HeardHealth(sockets, self.hear))

    def hear(self, reason: str) -> None:
        self.heard.append(f"{reason}, {sum(member.fileno() < 0 for member in self.members)} ended")
        self.lost.set()


class HeardHealth(GroupHealth):
    def __init__(self, sockets: GlooSockets, hear: Callable[[str], None]) -> None:
        super().__init__(sockets)
        self._hear = hear

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self._hear(reason)


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


def test_a_watch_that_is_stopped_goes_away_with_its_last_reference(group: Group) -> None:
    """It has a connection to the store."""
    watch = group.watch()
    gone = weakref.ref(watch)
    watch.stop()
    del watch
    assert gone() is None


def test_a_thread_may_stop_itself(group: Group) -> None:
    stopped = threading.Event()

    def stop(reason: str) -> None:
        watch.stop()
        stopped.set()

    sockets = FixedSockets(group.watched)
    watch = DeathWatch(sockets, group.store, HeardHealth(sockets, stop))
    group.members[0].close()
    assert stopped.wait(PATIENCE_S)


@pytest.mark.parametrize(("reason", "late"), [("timed out", True), ("Connection closed by peer", False)])
def test_who_has_waited_in_vain_says_so_to_all(reason: str, late: bool) -> None:
    store, sockets = HashStore(), FixedSockets([])
    waits, comes = GroupHealth(sockets), GroupHealth(sockets)
    watches = [DeathWatch(sockets, store, health) for health in (waits, comes)]
    assert not watches[1].was_late
    waits.fail(reason)
    assert watches[1].was_late == late


class SilentStore(HashStore):
    """That of a coordinator that is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def add(self, key: str, value: int) -> int:
        self.asked.set()
        self.goes_on.wait()
        return super().add(key, value)


@pytest.fixture
def silent() -> Iterator[SilentStore]:
    store = SilentStore()
    yield store
    store.goes_on.set()


def test_a_silent_store_holds_nobody_when_the_generation_fails(group: Group, silent: SilentStore) -> None:
    sockets = FixedSockets(group.watched)
    health = GroupHealth(sockets)
    watch = DeathWatch(sockets, silent, health)
    group.members[0].close()
    assert silent.asked.wait(PATIENCE_S)

    def leave() -> None:
        watch.say_goodbye()
        watch.stop()

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    health.fail("the coordinator is silent")
    leaving.join(PATIENCE_S)
    assert not leaving.is_alive()


def test_a_store_that_has_ended_is_not_asked() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = PrefixStore("generation", TCPStore("127.0.0.1", store.port, is_master=False))
    assert (has_ended(client), has_ended(HashStore())) == (False, False)
    del store
    assert has_ended(client)


def test_who_cannot_look_for_the_store_says_goodbye_nevertheless(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process whose descriptors are all taken, which would not end."""
    watch = group.watch()

    def fail() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(gloo_connections, "_descriptors", fail)
    leaving = threading.Thread(target=watch.say_goodbye, daemon=True)
    leaving.start()
    leaving.join(PATIENCE_S)
    assert not leaving.is_alive()
    assert PrefixStore("generation", group.store).add(GOODBYES, 0) == 1
    watch.stop()


class ToldConnection:
    """What Linux would tell of a connection."""

    family = socket.AF_INET

    def __init__(self, silent_s: float, retransmits: int = 0, probes: int = 0) -> None:
        self.silent_s, self.retransmits, self.probes = silent_s, retransmits, probes

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        info = bytearray(size)
        info[RETRANSMITS], info[PROBES] = self.retransmits, self.probes
        struct.pack_into("I", info, SINCE_ANSWERED, round(1e3 * self.silent_s))
        return bytes(info)


@pytest.mark.parametrize("tries", [{"retransmits": 1}, {"probes": 2}])
def test_who_is_tried_in_vain_for_long_is_cut_off(tries: dict[str, int]) -> None:
    connection: Any = ToldConnection(60.0, **tries)
    silence = Unanswered(8.0)
    assert not any(silence.find([connection], now_s) for now_s in (0.0, 2.0, 4.0, 6.0, 8.0))
    assert silence.find([connection], 10.0) is connection


def test_one_that_ends_while_it_is_looked_at_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll tells of it; the thread must live to hear that."""
    with socket.socket() as ended:
        monkeypatch.setattr(Unanswered, "find", lambda *_: ended)
        assert Unanswered(8.0).trouble([]) == ""


def test_an_answer_and_a_long_step_are_no_silence() -> None:
    idle: Any = ToldConnection(3600.0)
    lossy: Any = ToldConnection(60.0, retransmits=1)
    silence = Unanswered(8.0)
    for now_s in range(0, 40, 2):
        lossy.silent_s = 0.1 if now_s % 6 == 0 else 60.0
        assert silence.find([idle, lossy], float(now_s)) is None


def test_a_connection_of_the_kernels_has_what_is_looked_at() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
        try_when_idle([near], 8.0)
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 4
        assert len(near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)) == INFO_BYTES
        near.sendall(b"word")
        assert far.recv(4) == b"word"
        assert not waits(near, 0.0)
