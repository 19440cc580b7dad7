"""Records that members of a generation exchange at once, over the connections between every two of them."""

import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from polyrhythm.runtime.collectives.peer_sockets import RANK_BYTES, SECRET_BYTES, PeerSockets, store_key
from polyrhythm.runtime.wire.connection import ADDRESS, connect
from tests.runtime.members import together

SIZE = 3
LIMIT = timedelta(seconds=20)


def meshes() -> list[PeerSockets]:
    store = HashStore()
    return together(lambda rank: PeerSockets(store, rank, SIZE, LIMIT), SIZE)


def gathered(members: list[PeerSockets], records: list[bytes]) -> list[list[bytes]]:
    return together(lambda rank: members[rank].gather(records[rank]), SIZE)


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_everyone_has_everyones_records(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, address)
    members = meshes()
    for step in range(3):
        records = [bytes([rank, step]) for rank in range(SIZE)]
        assert gathered(members, records) == [records] * SIZE
    for member in members:
        member.close()


def test_who_waits_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    members = meshes()

    def act(rank: int) -> None:
        if rank == 0:
            members[0].end()
            return
        with pytest.raises(ConnectionError):
            members[rank].gather(b"here")

    together(act, SIZE)
    for member in members:
        member.close()


def test_a_stranger_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 hears from somebody who does not know the secret before it hears from the others."""
    monkeypatch.setenv(ADDRESS, "127.0.0.1")
    store, shown = HashStore(), threading.Event()

    def act(rank: int) -> list[bytes]:
        if rank:
            strange(store, shown)
        peer_sockets = PeerSockets(store, rank, SIZE, LIMIT)
        gathered = peer_sockets.gather(bytes([rank]))
        peer_sockets.close()
        return gathered

    assert together(act, SIZE) == [[b"\0", b"\1", b"\2"]] * SIZE


def strange(store: HashStore, shown: threading.Event) -> None:
    """Once, call rank 0 with a wrong secret, and wait to be hung up on."""
    if shown.is_set():
        return
    shown.set()
    address, _ = store.get(store_key(0)).decode().split(" ")
    with connect(address, LIMIT.total_seconds()) as sock:
        sock.sendall(bytes(SECRET_BYTES + RANK_BYTES))
        assert not sock.recv(1)
