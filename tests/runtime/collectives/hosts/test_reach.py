"""Hosts that do not reach each other are named, by everyone in the same words."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.hosts import reach

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.3")
"""Of the workers 0, 1, 2 and 5."""

LONG, SHORT = timedelta(seconds=60), timedelta(seconds=0.5)


def check_all(limit: timedelta) -> list[str]:
    """What each member is told; nothing if all is well."""
    store = HashStore()

    def check(rank: int) -> str:
        try:
            reach.check_reach(store, rank, (0, 1, 2, 5), HOSTS[rank], limit)
        except GroupError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        return list(pool.map(check, range(len(HOSTS))))


def cut(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> None:
    """Calls of which an address says so fail at once."""
    connect: Any = socket.create_connection

    def tried(address: tuple[str, int], *arguments: Any) -> Any:
        if fails(address[0]):
            raise OSError("No route to host")
        return connect(address, *arguments)

    monkeypatch.setattr(socket, "create_connection", tried)


def test_hosts_that_reach_each_other_are_through() -> None:
    assert check_all(LONG) == [""] * 4


def test_all_name_the_host_that_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda host: host == "127.0.0.3")
    told = (
        "host 127.0.0.1 (rank 0) does not reach host 127.0.0.3 (rank 5); "
        "host 127.0.0.2 (ranks 1, 2) does not reach host 127.0.0.3 (rank 5)"
    )
    assert check_all(SHORT) == [told] * 4


def test_a_call_that_fails_at_once_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter(range(6))
    cut(monkeypatch, lambda host: next(failures, None) is not None)
    assert check_all(LONG) == [""] * 4


def test_a_network_that_drops_packets_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full: the kernel does not answer further calls."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = reach.Place(*full.getsockname())
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(place)
        assert reach.unreached([place], 0.2) == ["127.0.0.1"]
        for sock in waiting:
            sock.close()


def test_who_does_not_come_is_told_by_the_store() -> None:
    with pytest.raises(RuntimeError):
        reach.check_reach(HashStore(), 0, (0, 1), "127.0.0.1", SHORT)


def test_calls_end_with_the_process() -> None:
    """Nobody waits for them at the end of a script."""
    begun: list[threading.Thread] = []

    class Noted(threading.Thread):
        def start(self) -> None:
            begun.append(self)
            super().start()

    with pytest.MonkeyPatch.context() as patched, reach.open_listener("127.0.0.1", 1) as listener:
        patched.setattr(threading, "Thread", Noted)
        assert reach.unreached([reach.Place(*listener.getsockname())], 60.0) == []
    assert [thread.daemon for thread in begun] == [True]


def test_many_pairs_are_counted() -> None:
    hosts = [f"10.0.0.{number}" for number in range(4)]
    found = {host: frozenset(hosts) - {host} for host in hosts}
    told = reach.describe(found, {host: host for host in hosts})
    assert told.endswith("10.0.0.1 and 10.0.0.2 do not reach each other; and 2 more")
