"""Whether the collectives of a generation still stand, and what ends when they do not."""

import re
import threading
from collections.abc import Callable
from typing import ClassVar, Protocol

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets


class Pending(Protocol):
    def end(self) -> None: ...


class GroupHealth:
    """Whether a generation still stands. Handles of collectives hold this and not the group.

    A group whose last reference goes away in one of its own threads would wait for itself.

    Attributes:
        failure: why it does not stand.
        tell_late: called before the connections are cut because a member has not come in time.
        failures: generations of this process that have failed; threads of their groups may wait until its end.
    """

    failures: ClassVar[int] = 0

    def __init__(self, sockets: GlooSockets) -> None:
        self.failure: str | None = None
        self.tell_late: Callable[[], object] = lambda: None
        self._sockets = sockets
        self._pending: set[Pending] = set()
        self._lock = threading.Lock()

    @property
    def is_late(self) -> bool:
        """Whether a member has not come in time, in gloo's words or in Python's: then none is gone.

        The kernel says that a connection has timed out: its other end is.
        """
        said = (self.failure or "").lower()
        return "timed out" in said and "connection timed out" not in said

    def await_end(self, work: Pending) -> None:
        with self._lock:
            if self.failure is None:
                self._pending.add(work)
                return
        work.end()

    def end(self, work: Pending) -> None:
        """A collective is over; it may have ended with the generation."""
        with self._lock:
            if work not in self._pending:
                return
            self._pending.remove(work)
        work.end()

    def fail(self, reason: str) -> None:
        """Note the first reason, cut the connections so that the peers notice, and end what is pending here."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = reason
            GroupHealth.failures += 1
            pending, self._pending = self._pending, set()
        if self.is_late:
            self.tell_late()
        self._sockets.shut_down()
        for work in pending:
            work.end()


BESIDE = re.compile(r"\[enforce fail at [^]]*\] .*? vs [^ ]*\. |\[[^]]*\.(cc|cpp|h):\d+\] |\. This is typically .*")
"""Where in gloo a check has failed, what it compared, and advice."""


def first_line(error: BaseException) -> str:
    """The first line of a message, without what gloo says beside it.

    >>> first_line(RuntimeError("[enforce fail at socket.cc:142] rv != -1. -1 vs -1. connect: No route to host"))
    'connect: No route to host'
    """
    return BESIDE.sub("", str(error).partition("\n")[0])
