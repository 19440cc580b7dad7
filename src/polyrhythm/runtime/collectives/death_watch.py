"""Notices at once that a member of a gloo group is gone, which gloo itself may miss.

A connection that ends is a death unless its member has said goodbye on the generation's store before. Every member is
connected to every other, so whoever gives up, and cuts its connections, tells all.

The store is the coordinator's, which may be stopped or killed. So nobody waits for its answer once the generation has
failed, and none is asked that has ended: torch prints its own frames for that.
"""

import os
import select
import threading

from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets, has_ended
from polyrhythm.runtime.collectives.group_health import GroupHealth

GOODBYES = "goodbyes"


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
        health: of the generation, which has failed when more connections have ended than members have said goodbye.
    """

    def __init__(self, sockets: GlooSockets, store: Store, health: GroupHealth) -> None:
        self._sockets, self._store, self._health = sockets, store, health
        self._connections = sockets.duplicate()
        self._stopped = self._asking = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="polyrhythm-death-watch")
        if self._connections:
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

    def _say(self, goodbye: Goodbye) -> None:
        self._count(1)
        self._health.end(goodbye)

    def _run(self) -> None:
        poll, ended = select.poll(), 0
        poll.register(self._wake, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, select.POLLRDHUP)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    return
                poll.unregister(descriptor)
                ended += 1
            self._asking = True  # before it looks whether it is stopped, as `stop` looks after it has said so
            if self._is_over():
                return
            goodbyes = self._count(0)
            if self._is_over():
                return
            self._asking = False
            if ended > goodbyes:
                self._health.fail("a member is gone: its connection has ended")
                return

    def _is_over(self) -> bool:
        return self._stopped or self._health.failure is not None

    def _count(self, more: int) -> int:
        """How many members have said goodbye, with so many more."""
        try:
            return 0 if has_ended(self._store) else self._store.add(GOODBYES, more)
        except RuntimeError:
            return 0
