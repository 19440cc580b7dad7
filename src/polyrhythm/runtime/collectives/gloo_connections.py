"""The TCP connections of one gloo group, found among this process's file descriptors so that they can be cut.

gloo offers no way to give up an operation: a pending receive ends when data, an end of file or the time limit comes,
and ``abort()`` changes none of that. Shutting the connections down from outside ends it at once, here and at the
peers. Linux only; elsewhere nothing is found, and an operation ends with its time limit.
"""

import fcntl
import os
import select
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.rate_limit import pace_own

DESCRIPTORS = Path("/proc/self/fd")

GLOO_THREADS = 2
"""torch's own default: two collectives of a group progress at a time."""

Ends: TypeAlias = frozenset[str]
"""Addresses of both ends of a connection."""


class GlooSockets:
    """The connections of one group.

    Every connection of a group joins the listener of one member's device to a port of another member. So they are
    those that touch one of its listeners, and were not there before the group was built: a process has one device for
    all its groups.

    Args:
        listeners: addresses of this process's devices, as `find_devices` returns them.
    """

    def __init__(self, listeners: Collection[str]) -> None:
        self._listeners = set(listeners)
        self._before = set(_connected())
        self._own: set[Ends] = set()

    def meet(self, store: Store, rank: int, size: int, ground: str = "") -> list[str]:
        """Exchange listeners with the other members, over their common store; an emulated link is thin from now on.

        What else they need of each other goes with it, as each question to the store is awaited: their grounds, see
        `polyrhythm.runtime.collectives.hosts.host_map`.
        """
        store.set(f"listeners/{rank}", f"{ground}\n{','.join(sorted(self._listeners))}")
        told = [word.decode().partition("\n") for word in store.multi_get([f"listeners/{r}" for r in range(size)])]
        for _, _, listing in told:
            self._listeners |= set(listing.split(",")) - {""}
        for _, connection in _sockets(_descriptors()):
            with connection:
                ends = _ends(connection)
                if ends not in self._before and not self._listeners.isdisjoint(ends):
                    self._own.add(ends)
                    pace_own(connection)
        return [theirs for theirs, _, _ in told]

    def duplicate(self) -> list[socket.socket]:
        """A duplicate of each connection, which keeps it open until closed."""
        return [connection for _, connection in self._connections()]

    def shut_down(self) -> None:
        """End all traffic: pending operations fail, here at once, and at the peers of these connections."""
        for _, connection in self._connections():
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close every descriptor of them, without a word to the peers while another process has copies."""
        for descriptor, connection in self._connections():
            connection.close()
            os.close(descriptor)

    def _connections(self) -> Iterator[tuple[int, socket.socket]]:
        """Descriptors of the group's connections, each with a duplicate for the caller to close.

        Listeners are not connected, so they are not among them: gloo aborts the process when one is shut down.
        """
        for descriptor, connection in _sockets(_descriptors()):
            if _ends(connection) in self._own:
                yield descriptor, connection
            else:
                connection.close()


class Devices(NamedTuple):
    """What gloo groups are built on, and the addresses that it listens on."""

    devices: list[dist.ProcessGroupGloo.Device]
    listeners: frozenset[str]


def find_devices() -> Devices:
    """This process's devices. All groups share them, as each has a thread that wakes up 100 times a second."""
    return _make_devices(os.environ.get("GLOO_SOCKET_IFNAME", ""), os.environ.get(ADDRESS, ""))


def leave_devices() -> None:
    """Build further groups on new devices: a group that is given up while it is built may go on connecting with these,
    and nothing tells its connections from those of the next group.
    """
    _make_devices.cache_clear()


@cache
def _make_devices(interfaces: str, address: str) -> Devices:
    before = _descriptors()
    devices = _open_devices(interfaces, address)
    return Devices(devices, frozenset(_listeners(_descriptors() - before)))


def _open_devices(interfaces: str, address: str) -> list[dist.ProcessGroupGloo.Device]:
    """What torch's own gloo groups would use; in a job on several hosts, whatever leads to the coordinator."""
    if interfaces:
        return [dist.ProcessGroupGloo.create_device(interface=name) for name in interfaces.split(",")]
    if address:
        return [dist.ProcessGroupGloo.create_device(hostname=address)]
    return [dist.ProcessGroupGloo.create_default_device()]


class Built(NamedTuple):
    """A group, its connections, and the members' grounds by rank."""

    group: dist.ProcessGroupGloo
    sockets: GlooSockets
    grounds: list[str]


def build_gloo(
    store: Store, rank: int, size: int, connect_timeout: timedelta, timeout: timedelta, ground: str = ""
) -> Built:
    """A group of the members that meet at this store, one of whom has this ground.

    Raises:
        RuntimeError: if they do not meet.
    """
    devices, listeners = find_devices()
    sockets = GlooSockets(listeners)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices, options._threads, options._timeout = devices, GLOO_THREADS, connect_timeout
    group = dist.ProcessGroupGloo(store, rank, size, options)
    group._set_default_timeout(timeout)
    return Built(group, sockets, sockets.meet(store, rank, size, ground))


def destroy(groups: list[dist.ProcessGroupGloo | None], at_once: bool) -> None:
    """Drop the last references to groups; after a failure gloo's destructor may wait for an operation until its limit,
    and does so in a thread.
    """
    if at_once:
        groups.clear()
    else:
        threading.Thread(target=groups.clear, daemon=True).start()


def has_ended(store: Store) -> bool:
    """Whether the server of a store has closed all connections of this process to it: a call would fail.

    Where all descriptors are taken it cannot be seen.
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    place, poll, mine = f"{getattr(store, 'host', '')} {getattr(store, 'port', 0)}", select.poll(), 0
    with suppress(OSError), ExitStack() as stack:
        for _, found in _sockets(_descriptors()):
            stack.enter_context(found)
            if place in {end.removeprefix("::ffff:") for end in _ends(found)}:
                poll.register(found, select.POLLRDHUP)
                mine += 1
        return 0 < mine == len(poll.poll(0))
    return False


def _descriptors() -> set[int]:
    """Those that are open: while the folder is read it has one itself, whose number the next one gets."""
    numbers = [int(entry.name) for entry in DESCRIPTORS.iterdir()] if DESCRIPTORS.is_dir() else []
    return {number for number in numbers if _is_open(number)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _duplicate(descriptor: int, above: int) -> socket.socket | None:
    """A duplicate of a descriptor if it is an Internet socket; it may be gone, or another thread's, at any time.

    Its number is above those that are being looked at, so that none of them is a duplicate.
    """
    try:
        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above + 1)
    except OSError:
        return None
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    if found.family in (socket.AF_INET, socket.AF_INET6):
        return found
    found.close()
    return None


def _sockets(descriptors: set[int]) -> Iterator[tuple[int, socket.socket]]:
    """Those that are Internet sockets, each with a duplicate for the caller to close."""
    for descriptor in descriptors:
        if found := _duplicate(descriptor, above=max(descriptors)):
            yield descriptor, found


def _connected() -> Iterator[Ends]:
    for _, found in _sockets(_descriptors()):
        with found:
            if ends := _ends(found):
                yield ends


def _ends(connection: socket.socket) -> Ends:
    try:
        return frozenset((_text(connection.getsockname()), _text(connection.getpeername())))
    except OSError:
        return frozenset()


def _listeners(descriptors: set[int]) -> Iterator[str]:
    for _, found in _sockets(descriptors):
        with found:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield _text(found.getsockname())


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]} {address[1]}"
