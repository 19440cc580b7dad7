"""Who is at the other end of a connection.

On one host the kernel says it: the two ends of a Unix socket belong to the same user, or to root. Over TCP both sides
prove that they know the job's token, with an HMAC over what they have said so far. A number of each side that is used
once is part of it, so a proof that somebody has heard opens nothing later, and its purpose is, so that it cannot be
sent back to the one who has given it. The token itself is never sent.
"""

import hmac
import os
import secrets
import signal
import socket
import struct
from contextlib import suppress
from typing import Final

from polyrhythm.errors import UsageError

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32


def make_token() -> str:
    """A secret for a job that was given none."""
    return secrets.token_hex(NONCE_BYTES)


def make_nonce() -> bytes:
    """A number that is used once."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(token: str, purpose: str, *said: bytes) -> bytes:
    """Evidence that one knows the token, for one purpose and one exchange of words.

    >>> prove("secret", "join", b"ab", b"c") == prove("secret", "join", b"a", b"bc")
    False
    """
    digest = hmac.new(token.encode(), purpose.encode(), "sha256")
    for part in said:
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.digest()


def proves(evidence: bytes, token: str, purpose: str, *said: bytes) -> bool:
    """Whether this is what `prove` gives; no token proves nothing."""
    return bool(token) and hmac.compare_digest(evidence, prove(token, purpose, *said))


def check_user(sock: socket.socket) -> None:
    """Abstract names have no permissions, so anybody may connect to one, or take it before the job does.

    Raises:
        UsageError: if the other end of a Unix socket belongs to another user.
    """
    user = peer_user(sock)
    if user not in (os.geteuid(), 0):
        raise UsageError(f"the process there belongs to user {user}, not to {os.geteuid()}; run both as one user")


def peer_user(sock: socket.socket) -> int:
    """User at the other end of a Unix socket."""
    return peer_credentials(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    """Process at the other end of a Unix socket; 0 if it is on another host."""
    return peer_credentials(sock)[0] if sock.family == socket.AF_UNIX else 0


def end_peer(sock: socket.socket) -> bool:
    """End the process at the other end of a connection; False if it is on another host."""
    if not (process := peer_pid(sock)):
        return False
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)  # before its connections close, which it would take for our end
    return True


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    process, user, group = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(process), int(user), int(group)
