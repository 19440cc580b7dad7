"""Notices at once that a member of a gloo group is gone, which gloo itself may miss.

A connection that ends is a death unless its member has said goodbye on the generation's store before. Every member is
connected to every other, so whoever gives up, and cuts its connections, tells all.

Two members that cannot reach each other any more close no connection, and both live. So the kernel is to try idle ones
now and then, and of the others it is looked whether they are answered at all. They are where the other end is busy, or
stopped: its kernel answers.

The store is the coordinator's, which may be stopped or killed. So once the generation has failed nobody waits for its
answer for longer than `ANSWER_S`, and none is asked that has ended: torch prints its own frames for that.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterable
from typing import ClassVar

from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets, has_ended
from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.wire.connection import keep_alive

GOODBYES, LATE = "goodbyes", "late"
"""Where the store counts the members that have said goodbye, and those that have waited for another one in vain."""

ANSWER_S = 1.0
"""How long the store is waited for by a member whose generation has failed."""

LOOKS = 4
"""How often it is looked within the time after which a silent connection has ended."""

RETRANSMITS, PROBES, SINCE_ANSWERED, INFO_BYTES = 2, 3, 56, 60
"""Where Linux tells of a connection how often it has tried in vain, and how many milliseconds ago it was answered."""


class Goodbye:
    """One that is being said; it ends when the store has it, or the generation has failed."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.end = self._over.set
        self.wait = self._over.wait


class DeathWatch:
    """A thread that waits for the end of any of a group's connections.

    Args:
        sockets: the group's connections.
        store: the generation's own.
        health: of the generation, which has failed when more connections have ended than members have said goodbye, or
            one is cut.

    Attributes:
        silent_s: after so many seconds in which the other end's kernel answers nothing a connection is cut.
    """

    silent_s: ClassVar[float] = 10.0

    def __init__(self, sockets: GlooSockets, store: Store, health: GroupHealth) -> None:
        self._sockets, self._store, self._health = sockets, store, health
        self._connections = sockets.duplicate()
        self._stopped = self._asking = False
        self._late = LateMembers(store)
        health.tell_late = self._late.add
        self._thread = threading.Thread(target=self._run, daemon=True, name="polyrhythm-death-watch")
        if self._connections:
            try_when_idle(self._connections, self.silent_s)
            self._wake = os.eventfd(0)
            self._thread.start()

    def stop(self) -> None:
        if self._connections:
            self._stopped = True
            os.eventfd_write(self._wake, 1)
            # A last reference may go away in the thread itself; and a store that is stopped does not let it go.
            if threading.current_thread() is not self._thread and not self._asking:
                self._thread.join()
            os.close(self._wake)
            self._close()

    def forget_in_child(self) -> None:
        """After a fork: close the child's copies, which would hide the parent's death from the other members."""
        self._close()
        self._sockets.close()

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []

    def say_goodbye(self) -> None:
        """Before the connections are closed in good order. If the store is gone, the others take it for a death."""
        goodbye = Goodbye()
        self._health.await_end(goodbye)
        threading.Thread(target=self._say, args=(goodbye,), daemon=True, name="polyrhythm-goodbye").start()
        goodbye.wait()

    @property
    def was_late(self) -> bool:
        """Whether the generation has failed because some member, perhaps this one, did not come in time."""
        return self._late.found

    def _hear_late(self) -> None:
        """gloo cuts a connection before its member can say why; and the store may end with that member."""
        self._asking = True  # as in `_missing`
        until_s = time.monotonic() + ANSWER_S
        while not (self._stopped or self.was_late) and time.monotonic() < until_s:
            time.sleep(ANSWER_S / 20)

    def _say(self, goodbye: Goodbye) -> None:
        count(self._store, GOODBYES, 1)
        self._health.end(goodbye)

    def _run(self) -> None:
        standing, silence, ended = OpenConnections(self._wake, self._connections), Unanswered(self.silent_s), 0
        trouble: str | None = ""
        while trouble == "":
            found = standing.await_ends(self.silent_s / LOOKS)
            if self._wake in found:
                return
            ended += len(found)
            trouble = self._missing(ended) if found else silence.trouble(standing.connections)
        if trouble is not None:
            self._health.fail(trouble)
            self._hear_late()

    def _missing(self, ended: int) -> str | None:
        """Whether more connections have ended than members have said goodbye; None if all is over here."""
        self._asking = True  # before it looks whether it is stopped, as `stop` looks after it has said so
        if self._is_over():
            return None
        goodbyes = count(self._store, GOODBYES, 0)
        if self._is_over():
            return None
        self._asking = False
        return "a member is gone: its connection has ended" if ended > goodbyes else ""

    def _is_over(self) -> bool:
        return self._stopped or self._health.failure is not None


class LateMembers:
    """How many members have waited for another one in vain, as the generation's store counts them.

    The generation's health calls it, which the watch has: in a class of its own nobody holds himself.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._answered, self._found = store, True, False

    @property
    def found(self) -> bool:
        """Whether there is one."""
        self._found = self._found or self._count(0) > 0
        return self._found

    def add(self) -> None:
        self._count(1)

    def _count(self, more: int) -> int:
        """How many there are with so many more; none once the store has not answered."""
        if not self._answered:
            return 0
        counted = list[int]()
        asking = threading.Thread(target=lambda: counted.append(count(self._store, LATE, more)), daemon=True)
        asking.start()
        asking.join(ANSWER_S)
        self._answered = bool(counted)
        return sum(counted)


def count(store: Store, what: str, more: int) -> int:
    """How many members have said this, with so many more."""
    try:
        return 0 if has_ended(store) else store.add(what, more)
    except RuntimeError:
        return 0


class OpenConnections:
    """The connections that have not ended.

    Args:
        wake: descriptor that is read when nothing need be awaited any more.
        connections: all.
    """

    def __init__(self, wake: int, connections: Iterable[socket.socket]) -> None:
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._by_descriptor = {connection.fileno(): connection for connection in connections}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLRDHUP)

    @property
    def connections(self) -> Collection[socket.socket]:
        return self._by_descriptor.values()

    def await_ends(self, limit_s: float) -> set[int]:
        """Descriptors of those that have ended since, and `wake`; none if the time is over."""
        found = {descriptor for descriptor, _ in self._poll.poll(1e3 * limit_s)}
        for descriptor in found & self._by_descriptor.keys():
            self._poll.unregister(descriptor)
            del self._by_descriptor[descriptor]
        return found


class Unanswered:
    """Since when connections have tried in vain to send something.

    Args:
        limit_s: after which that is too long.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[socket.socket, float] = {}

    def trouble(self, connections: Iterable[socket.socket]) -> str:
        """What to say of it if it is too long."""
        if (silent := self.find(connections, time.monotonic())) is None:
            return ""
        try:
            return f"{silent.getpeername()[0]} was not reached for {self._limit_s:g} s; see --hang-after"
        except OSError:  # it has ended meanwhile, as is told next
            return ""

    def find(self, connections: Iterable[socket.socket], now_s: float) -> socket.socket | None:
        """To be asked `LOOKS` times within the limit; one of which that is so, if there is any."""
        waiting = [each for each in connections if is_tcp(each) and waits(each, self._limit_s / LOOKS)]
        self._since = {each: self._since.get(each, now_s) for each in waiting}
        return next((each for each, since_s in self._since.items() if now_s - since_s > self._limit_s), None)


def waits(connection: socket.socket, period_s: float) -> bool:
    """Whether it has tried in vain to send something, and was not answered for so long."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    (silent_ms,) = struct.unpack_from("I", info, SINCE_ANSWERED)
    return bool(info[RETRANSMITS] or info[PROBES]) and silent_ms >= 1e3 * period_s


def try_when_idle(connections: Iterable[socket.socket], limit_s: float) -> None:
    """Have the kernel end idle connections whose other end does not answer it for so long."""
    period_s = min(max(1, round(limit_s / LOOKS)), 3600)
    for connection in filter(is_tcp, connections):
        keep_alive(connection, 2 * period_s, period_s, 2)


def is_tcp(connection: socket.socket) -> bool:
    return connection.family in (socket.AF_INET, socket.AF_INET6)
