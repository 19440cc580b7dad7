"""Links that the kernel holds down; a limiter may be slower than its rate, but never faster."""

import socket
import sys
import threading
import time

import pytest

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.wire.connection import address_of, connect, listen
from polyrhythm.runtime.wire.rate_limit import LARGEST, OPTION, RATE, pace, pace_own

SIZE, BYTES_PER_S = 1_000_000, 10e6
BURST = 150_000
"""What may leave at once: two or three of the kernel's largest segments."""


def seconds(sender: socket.socket, receiver: socket.socket) -> float:
    """How long so many bytes take."""
    thread = threading.Thread(target=sender.sendall, args=(b"x" * SIZE,))
    start, left = time.perf_counter(), SIZE
    thread.start()
    while left:
        left -= len(receiver.recv(left))
    thread.join()
    return time.perf_counter() - start


@pytest.mark.parametrize("end", ["client", "server"])
def test_no_more_than_the_rate_leaves(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("tcp:127.0.0.1:0") as listener:
        listener.setblocking(True)
        if end == "client":
            monkeypatch.setenv(RATE, str(BYTES_PER_S))
        else:
            pace(listener, BYTES_PER_S)
        with connect(address_of(listener), 5.0) as client, listener.accept()[0] as server:
            client.settimeout(60.0)
            ends = (client, server) if end == "client" else (server, client)
            seconds(*ends)  # a connection's first segments are not held down
            taken_s = seconds(*ends)
    assert taken_s >= (SIZE - BURST) / BYTES_PER_S


def test_where_the_kernel_cannot_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.runtime.wire.rate_limit.OPTION", 9999)
    with socket.socket() as sock, pytest.raises(PolyrhythmError, match="take bandwidth_gbps away"):
        pace(sock, 1e6)


@pytest.mark.parametrize(("rate", "kept"), [(3e9, 3_000_000_000), (1e12, LARGEST)])
def test_fast_links_are_not_held_down_below_what_they_are(rate: float, kept: int) -> None:
    with socket.socket() as connection:
        pace(connection, rate)
        assert int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, OPTION, 4), sys.byteorder) == kept


@pytest.mark.parametrize("rate", ["x", "nan", "0", "-1"])
def test_a_rate_that_is_none_is_one_line(rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RATE, rate)
    with socket.socket() as connection, pytest.raises(UsageError, match=f"^{RATE} must be .* but got '{rate}'; unset"):
        pace_own(connection)
