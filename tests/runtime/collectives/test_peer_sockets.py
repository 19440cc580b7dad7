"""Records that members of a generation exchange at once, over the connections between every two of them."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives import peer_sockets
from polyrhythm.runtime.collectives.peer_sockets import RANK_BYTES, PeerSockets, answer, know_token, meet, store_key
from polyrhythm.runtime.wire import credentials
from polyrhythm.runtime.wire.connection import ADDRESS, address_of, connect, listen
from polyrhythm.runtime.wire.credentials import NONCE_BYTES, PROOF_BYTES
from tests.runtime.members import together

SIZE = 3
LIMIT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def token() -> Iterator[None]:
    know_token("secret")
    yield
    know_token("")


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
    """Rank 0 hears from somebody who knows all that is on the store before it hears from the others."""
    monkeypatch.setenv(ADDRESS, "127.0.0.1")
    store, shown = HashStore(), threading.Event()

    def act(rank: int) -> list[bytes]:
        if rank:
            strange(store, shown)
        peers = PeerSockets(store, rank, SIZE, LIMIT)
        gathered = peers.gather(bytes([rank]))
        peers.close()
        return gathered

    assert together(act, SIZE) == [[b"\0", b"\1", b"\2"]] * SIZE


def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host nobody needs a token: the kernel says whose process it is."""
    asked: list[socket.socket] = []

    def peer_user(sock: socket.socket) -> int:
        asked.append(sock)
        return os.geteuid() + (len(asked) == 1)

    monkeypatch.setattr(credentials, "peer_user", peer_user)
    with listen("unix:@polyrhythm-test-peers") as acceptor, connect("unix:@polyrhythm-test-peers", 5.0) as stranger:
        stranger.sendall(bytes(RANK_BYTES))
        sock, rank = answer(acceptor, 5.0)
        assert rank == -1
        sock.close()


def test_strangers_give_a_meeting_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that says nothing takes some of its limit; the clock goes on by 2 s for each of them."""
    monkeypatch.setenv(ADDRESS, "127.0.0.1")
    left, strangers = list[int](), list[socket.socket]()

    def answer_stranger(acceptor: socket.socket, left_s: float) -> tuple[socket.socket, int]:
        left.append(round(left_s))
        now_s[0] += 2.0
        if left_s <= 0:
            return answer(acceptor, left_s)
        strangers.append(socket.socket())
        return strangers[-1], -1

    now_s = [0.0]
    monkeypatch.setattr(peer_sockets, "answer", answer_stranger)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    with pytest.raises(TimeoutError):
        meet(HashStore(), 0, SIZE, timedelta(seconds=5), "127.0.0.1")
    assert left == [5, 3, 1, -1]
    assert all(sock.fileno() == -1 for sock in strangers)


def strange(store: HashStore, shown: threading.Event) -> None:
    """Once, call rank 0 without knowing the token, and wait to be hung up on."""
    if shown.is_set():
        return
    shown.set()
    with connect(store.get(store_key(0)).decode(), LIMIT.total_seconds()) as sock:
        sock.sendall(bytes(NONCE_BYTES + RANK_BYTES + PROOF_BYTES))
        while sock.recv(NONCE_BYTES):
            pass


def test_one_in_the_place_of_a_member_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has put its own address on the store in the place of rank 0."""
    monkeypatch.setenv(ADDRESS, "127.0.0.1")
    store = HashStore()
    with listen("tcp:127.0.0.1:0") as impostor:
        impostor.settimeout(LIMIT.total_seconds())
        store.set(store_key(0), address_of(impostor))

        def act(rank: int) -> None:
            if rank:
                with pytest.raises(UsageError, match="does not know the token of the job"):
                    PeerSockets(store, 1, 2, LIMIT)
                return
            sock, _ = impostor.accept()
            sock.sendall(bytes(NONCE_BYTES))
            said = sock.recv(4096)
            assert b"secret" not in said
            sock.sendall(bytes(PROOF_BYTES))
            sock.close()

        together(act)


def test_nothing_secret_is_on_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    store = HashStore()
    for member in together(lambda rank: PeerSockets(store, rank, SIZE, LIMIT), SIZE):
        member.close()
    assert all(store.get(store_key(rank)).decode().startswith("unix:@polyrhythm-peers-") for rank in range(SIZE))
    assert all(" " not in store.get(store_key(rank)).decode() for rank in range(SIZE))
