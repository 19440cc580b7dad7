"""A connection between every two members of a generation, for records of a few bytes that all need before they go on.

Nobody stands between them, and no thread: who comes last finds what the others have sent. gloo's collectives go round
a ring through two threads on every member, and a coordinator in the middle has to be woken up twice.
"""

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.connection import ADDRESS, address_of, connect, listen
from polyrhythm.runtime.wire.credentials import (
    NONCE_BYTES,
    PROOF_BYTES,
    check_user,
    make_nonce,
    prove,
    proves,
)
from polyrhythm.runtime.wire.tls.sockets import binding_of
from polyrhythm.runtime.wire.tls.wrapping import accepted

RANK_BYTES = 4

CALL_S = 2.0
"""How long a caller may take to say who it is, while others wait."""

_token = ""


class PeerSockets:
    """One member's connections: over Unix sockets on one host, over TCP in a job on several.

    Args:
        store: the generation's own.
        rank: of this member.
        size: number of members.
        timeout: limit for all to meet.
        on_one_host: whether all are on one host: then over Unix sockets, also in a job on several.

    Attributes:
        peers: the connections to all others, by their ranks.

    Raises:
        RuntimeError: as the store does, if a member does not come.
        OSError, UnreachableError: if one cannot be reached.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, on_one_host: bool = False) -> None:
        self._rank = rank
        self.peers = meet(store, rank, size, timeout, "" if on_one_host else os.environ.get(ADDRESS, ""))

    def gather(self, record: bytes) -> list[bytes]:
        """Everyone's record, by rank; all of the same length, and few bytes: they have to fit into the sockets.

        Raises:
            OSError: if a connection ends.
        """
        for peer in self.peers.values():
            peer.sendall(record)
        length = len(record)
        records = [receive(peer, length) for peer in self.peers.values()]
        records.insert(self._rank, record)
        return records

    def end(self) -> None:
        """From any thread: who waits in `gather`, here or as a peer, waits no more."""
        for peer in self.peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connections; what was sent still arrives."""
        for peer in self.peers.values():
            peer.close()


def know_token(token: str) -> None:
    """That of the job of this process, which peers on other hosts must know, too."""
    global _token
    _token = token


def meet(store: Store, rank: int, size: int, timeout: timedelta, host: str = "") -> dict[int, socket.socket]:
    """Connections to all other members: each calls those of lower rank, whose addresses are on the store, once all are.

    `host` is where others reach this one over TCP; empty for Unix sockets.

    Anybody may read the store, so both sides show who they are: see `polyrhythm.runtime.wire.credentials`.
    """
    own = f"tcp:{host}:0" if host else f"unix:@polyrhythm-peers-{os.urandom(8).hex()}"
    deadline_s = time.monotonic() + timeout.total_seconds()
    with listen(own) as acceptor:
        store.set(store_key(rank), address_of(acceptor))
        lower = store.multi_get([store_key(other) for other in range(rank)]) if rank else []
        peers = {other: call(address.decode(), rank, timeout) for other, address in enumerate(lower)}
        while len(peers) < size - 1:
            sock, other = answer(acceptor, deadline_s - time.monotonic())
            if rank < other < size and other not in peers:
                peers[other] = sock
            else:
                sock.close()
    return dict(sorted(peers.items()))


def store_key(rank: int) -> str:
    return f"peers/{rank}"


def call(address: str, rank: int, timeout: timedelta) -> socket.socket:
    sock = connect(address, timeout.total_seconds())
    own = rank.to_bytes(RANK_BYTES, "little")
    if sock.family == socket.AF_UNIX:
        check_user(sock)
        sock.sendall(own)
        return ready(sock)
    said = receive(sock, NONCE_BYTES), make_nonce(), own
    bound = binding_of(sock)
    sock.sendall(said[1] + own + prove(_token, "call", *said, bound))
    if not proves(receive(sock, PROOF_BYTES), _token, "answer", *said, bound):
        sock.close()
        raise UsageError(f"the process at {address} does not know the token of the job; it is no member of it")
    return ready(sock)


def answer(acceptor: socket.socket, left_s: float) -> tuple[socket.socket, int]:
    """The next who calls and its rank; -1 if it is a stranger.

    Raises:
        TimeoutError: if nobody calls in the time that is left.
    """
    if left_s <= 0:  # strangers have taken it
        raise TimeoutError("timed out")
    acceptor.settimeout(left_s)
    sock, _ = acceptor.accept()
    with suppress(OSError, UsageError):
        sock = accepted(sock)
        sock.settimeout(CALL_S)
        if (rank := rank_of(sock)) >= 0:
            return ready(sock), rank
    return sock, -1


def rank_of(sock: socket.socket) -> int:
    """Who calls; -1 if it does not know the token."""
    if sock.family == socket.AF_UNIX:
        check_user(sock)
        return int.from_bytes(receive(sock, RANK_BYTES), "little")
    nonce = make_nonce()
    sock.sendall(nonce)
    shown = receive(sock, NONCE_BYTES + RANK_BYTES + PROOF_BYTES)
    said = nonce, shown[:NONCE_BYTES], shown[NONCE_BYTES:-PROOF_BYTES], binding_of(sock)
    if not proves(shown[-PROOF_BYTES:], _token, "call", *said):
        return -1
    sock.sendall(prove(_token, "answer", *said))
    return int.from_bytes(said[2], "little")


def ready(sock: socket.socket) -> socket.socket:
    sock.settimeout(None)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive(sock: socket.socket, length: int) -> bytes:
    data = sock.recv(length)
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            raise ConnectionResetError("its connection has ended")
        data += more
    return data
