"""Whether the hosts of a generation reach each other; gloo does not say who is not reached, and prints frames for it.

One member of each host calls one of each other host before gloo connects them all. A network may be away for a short
time, so it calls again until the limit, whether packets are lost or somebody answers that there is no way. All members
hear what all have found, and so fail with the same words. If one that calls dies, the kernel of its host says so to who
waits for it.
"""

import errno
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from torch.distributed.distributed_c10d import Store

from polyrhythm.errors import GroupError

TRY_S: Final = 2.0
"""How long one call may take; so a packet that is lost is sent anew."""

AGAIN_S: Final = 0.2
"""Pause after a call that has failed at once."""

MOST_S: Final = 10.0
"""How long hosts are called at most, when all members have come."""

FIRST_LOOK_S, LOOK_S = 1e-3, 0.128
"""Pauses between two looks at what others have found: the first, from which each is twice as long, and the longest."""

MOST_SHOWN: Final = 4

Unreached: TypeAlias = Mapping[str, frozenset[str]]
"""Addresses of hosts, and of those that each has not reached."""


class Place(NamedTuple):
    """Where a member listens."""

    host: str
    port: int


def check_reach(store: Store, rank: int, members: Sequence[int], host: str, limit: timedelta) -> None:
    """Wait until the hosts of all members reach each other.

    Args:
        store: of the generation alone.
        rank: of this member.
        members: workers by rank.
        host: address of this member's host.
        limit: for all to come; for them to be reached then it is at most `MOST_S`.

    Raises:
        RuntimeError: as the store does, if a member does not come.
        GroupError: if hosts do not reach each other; it names them. Also if a member that calls is gone.
    """
    with open_listener(host, 2 * len(members)) as listener:
        store.set(f"place/{rank}", f"{host} {listener.getsockname()[1]}")
        places = gather_places(store, len(members), limit)
        first = first_ranks(places)
        if rank == first[host]:
            others = [places[other] for other in first.values() if other != rank]
            store.set(found_by(rank), " ".join(unreached(others, min(MOST_S, limit.total_seconds()))))
        told = gather_found(store, {caller: places[caller] for caller in first.values()}, members, limit)
    found = {each: frozenset(words.split()) for each, words in zip(first, told, strict=True)}
    if any(found.values()):
        raise GroupError(describe(found, names(places, members)))


def open_listener(host: str, backlog: int) -> socket.socket:
    """The kernel answers for it: nobody accepts."""
    family, address = endpoint(host, 0)
    return socket.create_server(address, family=family, backlog=backlog)


def endpoint(host: str, port: int) -> tuple[int, Any]:
    """Family and address as sockets take them, with the link of an address that has one.

    >>> endpoint("127.0.0.1", 7)[1], endpoint("fe80::1%1", 7)[1]
    (('127.0.0.1', 7), ('fe80::1', 7, 0, 1))
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address


def gather_places(store: Store, members: int, limit: timedelta) -> list[Place]:
    keys = [f"place/{rank}" for rank in range(members)]
    store.wait(keys, limit)
    return [to_place(told) for told in map(bytes.decode, store.multi_get(keys))]


def gather_found(store: Store, callers: Mapping[int, Place], members: Sequence[int], limit: timedelta) -> list[str]:
    """What those members have found, by rank, that call other hosts.

    Raises:
        GroupError: if one of them is gone, or says nothing for too long.
    """
    keys, begun_s, limit_s = [found_by(rank) for rank in callers], time.monotonic(), limit.total_seconds() + MOST_S
    pause_s, connections, silent = FIRST_LOOK_S, dict[int, socket.socket](), set[int]()
    with ExitStack() as stack:
        while not store.check(keys):
            waited_s = time.monotonic() - begun_s
            if pause_s == LOOK_S:
                for rank in (callers.keys() - connections.keys()) - silent:
                    connections[rank] = stack.enter_context(begin_call(callers[rank]))
            gone, late = {*ended(connections, silent, waited_s > MOST_S + 1)}, waited_s > limit_s
            for rank, place in callers.items():
                if (late or rank in gone) and not store.check([found_by(rank)]):
                    raise GroupError(
                        f"rank {members[rank]} is gone, which called other hosts for {place.host}"
                        if rank in gone
                        else f"rank {members[rank]} has not said within {limit_s:g} s which hosts {place.host} reaches"
                    )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
    return [word.decode() for word in store.multi_get(keys)]


def found_by(rank: int) -> str:
    return f"unreached/{rank}"


def begin_call(place: Place) -> socket.socket:
    family, address = endpoint(*place)
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    connection.connect_ex(address)
    return connection


def ended(connections: dict[int, socket.socket], silent: set[int], refused_is_gone: bool) -> Iterator[int]:
    """Whose connections have been ended by those whom they lead to; one that the network ends is forgotten.

    Who is refused calls again: a firewall may say so, too, as long as those who call have not said what they found.
    """
    for rank, connection in list(connections.items()):
        try:
            if not connection.recv(1):
                yield rank
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno == errno.ECONNRESET or (refused_is_gone and error.errno == errno.ECONNREFUSED):
                yield rank
                continue
            if error.errno != errno.ECONNREFUSED:
                silent.add(rank)
            del connections[rank]


def to_place(told: str) -> Place:
    host, port = told.split()
    return Place(host, int(port))


def first_ranks(places: Sequence[Place]) -> dict[str, int]:
    """The member of each host that calls for it.

    >>> first_ranks([Place("10.0.0.1", 7), Place("10.0.0.1", 8), Place("10.0.0.2", 7)])
    {'10.0.0.1': 0, '10.0.0.2': 2}
    """
    first: dict[str, int] = {}
    for rank, place in enumerate(places):
        first.setdefault(place.host, rank)
    return first


def unreached(places: Sequence[Place], limit_s: float) -> list[str]:
    """Hosts of those that have not answered within the limit."""
    reached, deadline = set[Place](), time.monotonic() + limit_s
    calls = [threading.Thread(target=call, args=(place, deadline, reached), daemon=True) for place in places]
    for one in calls:
        one.start()
    for one in calls:
        one.join()
    return [place.host for place in places if place not in reached]


def call(place: Place, deadline: float, reached: set[Place]) -> None:
    """Again and again, until it answers or time is over."""
    while (left_s := deadline - time.monotonic()) > 0 and place not in reached:
        with suppress(OSError), socket.create_connection(place, min(TRY_S, left_s)):
            reached.add(place)
            return
        time.sleep(min(AGAIN_S, max(0.0, deadline - time.monotonic())))


def names(places: Sequence[Place], members: Sequence[int]) -> dict[str, str]:
    """How hosts are called, by their addresses.

    >>> names([Place("10.0.0.1", 7), Place("10.0.0.1", 8), Place("10.0.0.2", 7)], [0, 1, 4])
    {'10.0.0.1': 'host 10.0.0.1 (ranks 0, 1)', '10.0.0.2': 'host 10.0.0.2 (rank 4)'}
    """
    workers: dict[str, list[str]] = {}
    for place, worker in zip(places, members, strict=True):
        workers.setdefault(place.host, []).append(str(worker))
    return {
        host: f"host {host} (rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)})" for host, ranks in workers.items()
    }


def describe(found: Unreached, shown: Mapping[str, str]) -> str:
    """Which host does not reach which.

    >>> shown = {"a": "host a", "b": "host b", "c": "host c"}
    >>> describe({"a": frozenset("b"), "b": frozenset("a"), "c": frozenset("a")}, shown)
    'host a and host b do not reach each other; host c does not reach host a'
    """
    lines = []
    for host, others in found.items():
        for other in sorted(others):
            mutual = host in found.get(other, ())
            if mutual and host < other:
                lines.append(f"{shown[host]} and {shown[other]} do not reach each other")
            elif not mutual:
                lines.append(f"{shown[host]} does not reach {shown[other]}")
    more = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return "; ".join([*lines[:MOST_SHOWN], *more])
