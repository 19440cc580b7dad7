"""Who may connect: the first message on every connection, on both sides."""

import hmac
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from polyrhythm.errors import FrameError, PolyrhythmError, UnreachableError, UsageError
from polyrhythm.runtime.wire.connection import Channel, ConnectionHandler, close_in_children, connect
from polyrhythm.runtime.wire.event_loop import Loop, LoopTimer
from polyrhythm.runtime.wire.frames import MAX_BODY, MAX_HELLO, Payload
from polyrhythm.runtime.wire.shard_protocol import Hello, Rejected, Welcome

PATIENCE_S = 5.0
"""How long a new connection may take to say who it is."""

Decoder = msgspec.msgpack.Decoder

Admit = Callable[[Channel, Hello], ConnectionHandler]
"""Gives a newcomer its handler; raises `UsageError` to refuse it."""


class Acceptor:
    """Lets those in who name the right job and know its token.

    Args:
        loop: serves the connections.
        listener: see `polyrhythm.runtime.wire.connection.listen`.
        job: id of the job.
        token: secret of the job; empty where only this host can connect.
        decoder: of all messages that may come, `Hello` among them.
        admit: called for each newcomer that is in order; it is `Welcome` once its handler is there.
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, job: str, token: str, decoder: "Decoder[Any]", admit: Admit
    ) -> None:
        self.loop = loop
        self._job = job
        self._token = token
        self._decoder = decoder
        self._admit = admit
        loop.listen(listener, self._accept)

    def check(self, hello: Hello) -> None:
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise UsageError("the token is wrong; use the token of the job")
        if hello.job != self._job:
            raise UsageError(f"this is job {self._job!r}, not {hello.job!r}; check the address and the job id")

    def admit(self, channel: Channel, hello: Hello) -> None:
        try:
            self.check(hello)
            channel.peer = channel.parser.peer = f"{hello.role} {hello.rank}"
            handler = self._admit(channel, hello)
        except PolyrhythmError as error:
            channel.send(Rejected(str(error)))
            channel.close()
            return
        channel.parser.max_body = MAX_BODY
        channel.send(Welcome())
        self.loop.add(channel, handler)

    def _accept(self, sock: socket.socket) -> None:
        if sock.family == socket.AF_UNIX and peer_uid(sock) not in (os.getuid(), 0):
            sock.close()  # abstract names have no permissions of their own
            return
        channel = Channel(sock, self._decoder, "an unknown peer")
        channel.parser.max_body = MAX_HELLO
        timer = self.loop.call_later(PATIENCE_S, channel.close)
        self.loop.add(channel, Newcomer(self, channel, timer))


class Newcomer:
    def __init__(self, acceptor: Acceptor, channel: Channel, timer: LoopTimer) -> None:
        self._acceptor = acceptor
        self._channel = channel
        self._timer = timer

    def received(self, message: Any) -> None:
        self._timer.cancel()
        if not isinstance(message, Hello):
            raise FrameError(f"an unknown peer sent {type(message).__name__} before Hello")
        self._acceptor.admit(self._channel, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"an unknown peer announced {payload.nbytes} bytes before the handshake")

    def lost(self, reason: str) -> None:
        self._timer.cancel()


def peer_uid(sock: socket.socket) -> int:
    """User who connected to a Unix socket; our own where the system does not say."""
    return peer_credentials(sock)[1] if hasattr(socket, "SO_PEERCRED") else os.getuid()


def peer_pid(sock: socket.socket) -> int:
    """Process that connected to a Unix socket; 0 if it is on another host, or the system does not say."""
    return peer_credentials(sock)[0] if sock.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED") else 0


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    process, user, group = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(process), int(user), int(group)


class Applicant:
    """Handler of a connection that waits for the answer to its `Hello`, and hands it to `handler` with the Welcome."""

    def __init__(self, channel: Channel, handler: ConnectionHandler) -> None:
        self.answer: Welcome | Rejected | None = None
        self.gone = False
        self._channel = channel
        self._handler = handler

    def received(self, message: Any) -> None:
        """Nothing but an answer can come now; what comes after a Welcome is for the handler."""
        if not isinstance(message, Welcome | Rejected):
            raise FrameError(f"the server sent {type(message).__name__} before Welcome")
        self.answer = message
        if isinstance(message, Welcome):
            self._channel.handler = self._handler

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the server announced {payload.nbytes} bytes before the handshake")

    def lost(self, reason: str) -> None:
        self.gone = self.answer is None
        self.answer = self.answer or Rejected(reason)


def join(
    loop: Loop, address: str, hello: Hello, decoder: "Decoder[Any]", handler: ConnectionHandler, timeout_s: float = 30.0
) -> Channel:
    """Connect to a server and say who one is; what comes after `Welcome` goes to `handler`.

    The channel is closed in forked children, so that they do not hide a death of this process.

    Raises:
        UnreachableError: if nobody answers in time.
        UsageError: if the server refuses, and why.
    """
    channel = Channel(connect(address, timeout_s), decoder, f"the server at {address}", takes_fds=True)
    close_in_children(channel)
    applicant = Applicant(channel, handler)
    loop.add(channel, applicant)
    channel.send(hello)
    loop.run_until(lambda: applicant.answer, timeout_s)
    if isinstance(applicant.answer, Welcome):
        return channel
    channel.close()
    kind = UsageError if applicant.answer and not applicant.gone else UnreachableError
    reason = applicant.answer.reason if applicant.answer else f"no answer within {timeout_s:g} s"
    raise kind(f"{hello.role} {hello.rank} cannot join job {hello.job!r} at {address}: {reason}")
