"""Notices at once that a member of a gloo group is gone, which gloo itself may miss.

A connection that ends is a death unless its member has said goodbye on the generation's store before. Every member is
connected to every other, so whoever gives up, and cuts its connections, tells all.
"""

import os
import select
import threading
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets

GOODBYES = "goodbyes"


class DeathWatch:
    """A thread that waits for the end of any of a group's connections.

    Args:
        sockets: the group's connections.
        store: the generation's own.
        lost: called once, from the thread, when more connections have ended than members have said goodbye.
    """

    def __init__(self, sockets: GlooSockets, store: Store, lost: Callable[[str], None]) -> None:
        self._sockets, self._store, self._lost = sockets, store, lost
        self._connections = sockets.duplicate()
        self._thread = threading.Thread(target=self._run, daemon=True, name="polyrhythm-death-watch")
        if self._connections:
            self._wake = os.eventfd(0)
            self._thread.start()

    def stop(self) -> None:
        if self._connections:
            os.eventfd_write(self._wake, 1)
            # A last reference may go away in the thread itself.
            if threading.current_thread() is not self._thread:
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
        try:
            self._store.add(GOODBYES, 1)
        except RuntimeError:
            return

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
            if ended > self._goodbyes():
                self._lost("a member is gone: its connection has ended")
                return

    def _goodbyes(self) -> int:
        try:
            return self._store.add(GOODBYES, 0)
        except RuntimeError:
            return 0
