"""Whose the other end of a connection within this host is."""

import os
import socket
from pathlib import Path

import pytest

from polyrhythm.live import peers

CONNECTION = (
    "   1: 0100007F:{port} 0100007F:24F8 {state} 00000000:00000000 00:00000000 00000000  {user}        0 4711 1"
)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_client_of_ours_is_known_while_it_is_connected(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]):
            accepted, client = server.accept()
            with accepted:
                assert peers.user_of(*client[:2]) == os.getuid()
                assert peers.is_own_user(*client[:2])
        assert peers.user_of(*client[:2]) is None


def test_a_socket_for_both_versions_of_ip_is_found_by_its_old_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as both:
        both.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        accepted, client = server.accept()
        with accepted:
            assert peers.user_of(*client) == os.getuid()


@pytest.mark.parametrize(
    ("user", "state", "found"), [(os.getuid() + 1, "01", False), (0, "01", True), (0, "06", False)]
)
def test_another_user_and_what_is_left_of_a_connection_are_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, state: str, found: bool
) -> None:
    table = tmp_path / "tcp"
    table.write_text("  sl  local_address ...\n" + CONNECTION.format(port="2328", state=state, user=user))
    monkeypatch.setattr(peers, "TABLES", (table, tmp_path / "missing"))
    assert peers.is_own_user("127.0.0.1", 0x2328) is found
