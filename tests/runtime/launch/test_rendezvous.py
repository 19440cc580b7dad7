"""Ports that are chosen before they are used, and belong to nobody else meanwhile."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
from torch._C._distributed_c10d import TCPStore

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.runtime.launch import rendezvous
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.launch.ray import reserve_pair
from polyrhythm.runtime.launch.rendezvous import port_of, reserve_port, store_listener, store_port
from polyrhythm.runtime.wire.config_sources import HANDED_ON
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.job_config import JobConfig

LIMIT = timedelta(seconds=20)


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_thirty_at_once_choose_thirty_ports() -> None:
    with ThreadPoolExecutor(30) as pool:
        kept = list(pool.map(lambda _: reserve_port(), range(30)))
    ports = [port_of(sock) for sock in kept]
    assert len({*ports}) == 30
    assert not any(map(is_free, ports))
    for sock in kept:
        sock.close()
    assert all(map(is_free, ports))


@pytest.mark.parametrize("use_libuv", [True, False])
def test_who_is_told_of_a_kept_port_may_use_it_often(use_libuv: bool) -> None:
    with store_port(Node()) as port:
        for number in range(2):
            store = TCPStore(
                "127.0.0.1", port, None, True, LIMIT, wait_for_workers=False, multi_tenant=True, use_libuv=use_libuv
            )
            assert store.add("opened", 1) == 1, f"keys of the store before are found in number {number}"
            del store
        listen(f"tcp:127.0.0.1:{port}").close()


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1"), ("127.0.1.1", "127.0.1.1")],
)
def test_a_store_within_a_host_listens_on_loopback_at_a_kept_port(host: str, own: str) -> None:
    with store_port(Node()) as port:
        listener = store_listener(host, port)
        assert listener is not None
        assert listener.getsockname()[:2] == (own, port)
        assert store_listener(host, port) is None, "the port is in use"
        listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "no such host"])
def test_what_is_no_loopback_address_is_left_to_torch(host: str) -> None:
    assert store_listener(host, 0) is None


def test_a_given_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port_of(taken)
        with pytest.raises(UsageError, match=f"port {port} .* Address already in use; give another --master-port"):
            reserve_port(port)


def test_other_hosts_are_told_the_port_of_the_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        port = port_of(elsewhere)
        with store_port(Node(rank=1, count=2, host="127.0.0.1", store_port=port)) as told:
            assert told == port


def test_who_waits_for_the_coordinator_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.2)
    monkeypatch.setattr(rendezvous, "QUIET_S", 0.0)
    with pytest.raises(UnreachableError, match="cannot connect to unix:@polyrhythm-nobody"):
        rendezvous.wait_for_coordinator("unix:@polyrhythm-nobody")
    said = "polyrhythm: nobody answers at unix:@polyrhythm-nobody yet; it is tried for 0.2 s\n"
    assert capsys.readouterr().err == said


def test_two_successive_ports() -> None:
    first, second = reserve_pair()
    with first, second:
        assert port_of(second) == port_of(first) + 1
        assert not is_free(port_of(second))


@pytest.mark.parametrize("said_before", [False, True])
def test_a_worker_of_torchrun_says_which_variable_is_misspelt(
    said_before: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody said it; ``polyrhythm run`` around a worker has."""
    monkeypatch.setattr(rendezvous, "start_coordinator", lambda config: None)
    monkeypatch.setattr(rendezvous, "wait_for_coordinator", lambda address: None)
    monkeypatch.setenv("POLYRHYTHM_POLCY", "asp")
    if said_before:
        monkeypatch.setenv(HANDED_ON, msgspec.json.encode(JobConfig()).decode())
    rendezvous.find_coordinator({})
    said = "polyrhythm: POLYRHYTHM_POLCY does nothing: did you mean POLYRHYTHM_POLICY?\n"
    assert capsys.readouterr().err == ("" if said_before else said)
