"""A connection between every two members of a generation, for records of a few bytes that all need before they go on.

Nobody stands between them, and no thread: who comes last finds what the others have sent. gloo's collectives go round
a ring through two threads on every member, and a coordinator in the middle has to be woken up twice.
"""

import os
import socket
from contextlib import suppress
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.wire.connection import ADDRESS, address_of, connect, listen

SECRET_BYTES = 16
RANK_BYTES = 4


class PeerSockets:
    """One member's connections: over Unix sockets on one host, over TCP in a job on several.

    Args:
        store: the generation's own.
        rank: of this member.
        size: number of members.
        timeout: limit for all to meet.

    Attributes:
        peers: the connections to all others, by their ranks.

    Raises:
        RuntimeError: as the store does, if a member does not come.
        OSError, UnreachableError: if one cannot be reached.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._rank = rank
        self.peers = meet(store, rank, size, timeout)

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


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> dict[int, socket.socket]:
    """Connections to all other members: each calls those of lower rank, and shows what they have put on the store."""
    secret = os.urandom(SECRET_BYTES)
    host = os.environ.get(ADDRESS, "")
    own = f"tcp:{host}:0" if host else f"unix:@polyrhythm-peers-{os.urandom(8).hex()}"
    with listen(own, token=secret.hex()) as acceptor:
        acceptor.settimeout(timeout.total_seconds())
        store.set(store_key(rank), f"{address_of(acceptor)} {secret.hex()}")
        peers = {other: call(store.get(store_key(other)).decode(), rank, timeout) for other in range(rank)}
        while len(peers) < size - 1:
            peers |= answer(acceptor, secret, timeout)
    return dict(sorted(peers.items()))


def store_key(rank: int) -> str:
    return f"peers/{rank}"


def call(listing: str, rank: int, timeout: timedelta) -> socket.socket:
    address, secret = listing.split(" ")
    sock = connect(address, timeout.total_seconds())
    sock.sendall(bytes.fromhex(secret) + rank.to_bytes(RANK_BYTES, "little"))
    return ready(sock)


def answer(acceptor: socket.socket, secret: bytes, timeout: timedelta) -> dict[int, socket.socket]:
    sock, _ = acceptor.accept()
    sock.settimeout(timeout.total_seconds())
    with suppress(OSError):
        shown = receive(sock, SECRET_BYTES + RANK_BYTES)
        if shown[:SECRET_BYTES] == secret:
            return {int.from_bytes(shown[SECRET_BYTES:], "little"): ready(sock)}
    sock.close()
    return {}


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
