"""Hosts that do not reach each other are named, by everyone in the same words."""

import errno
import os
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


def check_as_second(port: int) -> None:
    """As the second member of a host whose first one listens at this port, and never says whom it has reached."""
    store = HashStore()
    store.set("place/0", f"127.0.0.1 {port}")
    reach.check_reach(store, 1, (4, 7), "127.0.0.1", LONG)


def test_nobody_waits_for_a_caller_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "MOST_S", 0.2)
    with reach.open_listener("127.0.0.1", 1) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(GroupError, match=r"^rank 4 is gone, which called other hosts for 127\.0\.0\.1$"):
        check_as_second(port)


def test_who_waits_hears_that_a_caller_goes() -> None:
    with ThreadPoolExecutor(1) as pool, reach.open_listener("127.0.0.1", 4) as listener:
        waiting = pool.submit(check_as_second, listener.getsockname()[1])
        listener.settimeout(LONG.total_seconds())
        connection, _ = listener.accept()
        connection.close()
        with pytest.raises(GroupError, match="rank 4 is gone"):
            waiting.result()


def test_a_caller_of_which_the_network_tells_nothing_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "MOST_S", 0.2)
    monkeypatch.setattr(reach, "LOOK_S", reach.FIRST_LOOK_S)
    monkeypatch.setattr(reach, "begin_call", lambda _: NoWay())
    with pytest.raises(GroupError, match=r"^rank 0 has not said within 0\.7 s which hosts 127\.0\.0\.1 reaches$"):
        reach.gather_found(HashStore(), {0: reach.Place("127.0.0.1", 1)}, (0, 1), SHORT)


def test_a_caller_by_whom_one_is_refused_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall says so, too, for a time, or between these two only."""
    monkeypatch.setattr(reach, "LOOK_S", reach.FIRST_LOOK_S)
    store, called = HashStore(), list[reach.Place]()

    def call(place: reach.Place) -> socket.socket:
        called.append(place)
        if len(called) == 3:
            store.set("unreached/0", "10.0.0.2")
        return Refused()

    monkeypatch.setattr(reach, "begin_call", call)
    assert reach.gather_found(store, {0: reach.Place("127.0.0.1", 1)}, (0, 1), SHORT) == ["10.0.0.2"]


class Refused(socket.socket):
    def recv(self, *_: object) -> bytes:
        raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class NoWay(socket.socket):
    """One whose other end the network does not reach; what comes after that it takes for the end."""

    told = False

    def recv(self, *_: object) -> bytes:
        if self.told:
            return b""
        self.told = True
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))


def test_a_listener_is_on_the_link_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, int]] = []
    monkeypatch.setattr(socket, "create_server", lambda address, *, family, backlog: made.append((address, family)))
    for host in ("127.0.0.2", "::1", "fe80::1%1"):
        reach.open_listener(host, 1)
    assert made == [
        (("127.0.0.2", 0), socket.AF_INET),
        (("::1", 0, 0, 0), socket.AF_INET6),
        (("fe80::1", 0, 0, 1), socket.AF_INET6),
    ]


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
