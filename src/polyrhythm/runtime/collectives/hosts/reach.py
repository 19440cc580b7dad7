"""Whether the hosts of a generation reach each other; gloo does not say who is not reached, and prints frames for it.

One member of each host calls one of each other host before gloo connects them all. A network may be away for a short
time, so it calls again until the limit, whether packets are lost or somebody answers that there is no way. All members
hear what all have found, and so fail with the same words.
"""

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from torch.distributed.distributed_c10d import Store

from polyrhythm.errors import GroupError

TRY_S: Final = 2.0
"""How long one call may take; so a packet that is lost is sent anew."""

AGAIN_S: Final = 0.2
"""Pause after a call that has failed at once."""

MOST_S: Final = 10.0
"""How long hosts are called at most, when all members have come."""

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
        GroupError: if hosts do not reach each other; it names them.
    """
    with open_listener(host, len(members)) as listener:
        store.set(f"place/{rank}", f"{host} {listener.getsockname()[1]}")
        places = [to_place(told) for told in gather(store, "place", range(len(members)), limit)]
        first = first_ranks(places)
        if rank == first[host]:
            others = [places[other] for other in first.values() if other != rank]
            store.set(f"unreached/{rank}", " ".join(unreached(others, min(MOST_S, limit.total_seconds()))))
        told = gather(store, "unreached", list(first.values()), limit + timedelta(seconds=MOST_S))
    found = {each: frozenset(words.split()) for each, words in zip(first, told, strict=True)}
    if any(found.values()):
        raise GroupError(describe(found, names(places, members)))


def open_listener(host: str, backlog: int) -> socket.socket:
    """The kernel answers for it: nobody accepts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=backlog)


def gather(store: Store, name: str, ranks: Sequence[int], limit: timedelta) -> list[str]:
    keys = [f"{name}/{rank}" for rank in ranks]
    store.wait(keys, limit)
    return [word.decode() for word in store.multi_get(keys)]


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
