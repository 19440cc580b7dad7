"""The kit for several hosts does what the tests on it rely on: rates hold, and nothing is left behind."""

import subprocess
import sys

import pytest

from tests.network.namespaces import Host, burst_bytes, network, run

RECEIVE = """
import socket, time
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    start, received = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        received += len(data)
    print(received, time.monotonic() - start)
"""

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def transfer(sender: Host, receiver: Host, size: int) -> tuple[int, float]:
    """Send so many bytes; how many arrived, and in how many seconds."""
    listening = receiver.start([sys.executable, "-c", RECEIVE])
    assert listening.stdout is not None
    assert listening.stdout.readline() == "listening\n"
    sending = sender.start([sys.executable, "-c", SEND, receiver.address, str(size)])
    output, errors = listening.communicate(timeout=60)
    assert (sending.wait(timeout=60), listening.returncode) == (0, 0), errors
    received, seconds = output.split()
    return int(received), float(seconds)


@pytest.mark.parametrize("rate_mbit", [50, 200])
def test_hosts_exchange_data_at_no_more_than_their_rate(rate_mbit: float) -> None:
    size = 4_000_000
    with network(2, rate_mbit) as (first, second):
        received, seconds = transfer(first, second, size)
    # A bucket at each end may be sent at once; the limiter's own rounding is well below 5 %.
    assert received == size
    assert seconds >= 0.95 * (size - 2 * burst_bytes(rate_mbit)) * 8 / (rate_mbit * 1e6)


def test_a_host_reaches_its_loopback() -> None:
    with network(1, 100) as (host,):
        assert transfer(host, Host(host.namespace, "127.0.0.1", host.processes), 1000)[0] == 1000


def test_nothing_is_left_behind_after_an_error() -> None:
    before = run("ip", "netns", "list")
    processes: list[subprocess.Popen[str]] = []

    def break_down() -> None:
        with network(2, 100) as hosts:
            processes.extend(host.start(["sleep", "600"]) for host in hosts)
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        break_down()
    assert run("ip", "netns", "list") == before
    assert [process.returncode for process in processes] == [-9, -9]


def test_a_refusal_is_one_clear_line() -> None:
    with pytest.raises(RuntimeError, match="ip netns delete no-such-host failed: Cannot remove"):
        run("ip", "netns", "delete", "no-such-host")
