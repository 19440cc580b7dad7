"""Who may connect: the first messages on every connection, on both sides.

    Hello  ->            which job, as whom
           <-  Challenge over TCP only: see `polyrhythm.runtime.wire.credentials`
    Proof  ->
           <-  Welcome   or Rejected

Until then nothing but these is decoded, no message may be long, and few may wait at a time.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from polyrhythm.errors import FrameError, PolyrhythmError, UnreachableError, UsageError
from polyrhythm.runtime.wire.connection import Channel, ConnectionHandler, close_in_children, connect
from polyrhythm.runtime.wire.credentials import check_user, make_nonce, prove, proves
from polyrhythm.runtime.wire.event_loop import Loop, LoopTimer
from polyrhythm.runtime.wire.frames import ENCODER, MAX_HELLO, Payload, encode
from polyrhythm.runtime.wire.shard_protocol import Challenge, Hello, Proof, Rejected, Welcome
from polyrhythm.runtime.wire.tls.sockets import TlsSocket, binding_of
from polyrhythm.runtime.wire.tls.wrapping import accepted

PATIENCE_S = 5.0
"""How long a new connection may take to say and prove who it is."""

MOST_NEWCOMERS = 64
"""Connections that may be about to do so at a time; one more, and the oldest is dropped."""

WRONG_TOKEN = "the token is wrong; use the token of the job, as in POLYRHYTHM_TOKEN"

Decoder = msgspec.msgpack.Decoder

FROM_NEWCOMER: "Decoder[Any]" = Decoder(Hello | Proof)
TO_NEWCOMER: "Decoder[Any]" = Decoder(Challenge | Welcome | Rejected)

Admit = Callable[[Channel, Hello], ConnectionHandler]
"""Gives a newcomer its handler; raises `UsageError` to refuse it."""


class Acceptor:
    """Lets those in who name the right job and, over TCP, know its token; on this host, who is the same user.

    Args:
        loop: serves the connections.
        listener: see `polyrhythm.runtime.wire.connection.listen`.
        job: id of the job.
        token: secret of the job; without one nobody comes in over TCP.
        decoder: of all messages that may come after the handshake.
        admit: called for each newcomer that is in order; it is `Welcome` once its handler is there.
        crowded: called with the reason if one cannot be let in because no descriptor is left; it is told, too.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        job: str,
        token: str,
        decoder: "Decoder[Any]",
        admit: Admit,
        crowded: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.loop = loop
        self.token = token
        self._job = job
        self._decoder = decoder
        self._admit = admit
        self._newcomers: dict[Channel, None] = {}
        self._crowded = crowded
        loop.listen(listener, self._accept, self._turn_away)

    def admit(self, channel: Channel, hello: Hello, evidence: bytes) -> None:
        try:
            if hello.job != self._job:
                raise UsageError(f"this is job {self._job!r}, not {hello.job!r}; check the address and the job id")
            channel.peer = channel.parser.peer = f"{hello.role} {hello.rank}"
            handler = self._admit(channel, hello)
        except PolyrhythmError as error:
            self.refuse(channel, str(error))
            return
        channel.parser.accept_all(self._decoder)
        channel.send(Welcome(evidence))
        self.loop.add(channel, handler)

    def refuse(self, channel: Channel, reason: str) -> None:
        channel.send(Rejected(reason))
        channel.close()

    def forget(self, channel: Channel) -> None:
        """It is in, or gone."""
        self._newcomers.pop(channel, None)

    def _turn_away(self, sock: socket.socket, why: str) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.send(encode(Rejected(why)))
        self._crowded(why)

    def _accept(self, sock: socket.socket) -> None:
        try:
            sock = accepted(sock)
        except OSError:  # it is gone again
            return
        channel = Channel(sock, FROM_NEWCOMER, "an unknown peer", max_body=MAX_HELLO)
        try:
            if channel.local:
                check_user(sock)
        except UsageError as error:
            self.refuse(channel, str(error))
            return
        channel.parser.one_at_a_time = True
        timer = self.loop.call_later(PATIENCE_S, lambda: channel.end("it does not say who it is"))
        self.loop.add(channel, Newcomer(self, channel, timer))
        self._newcomers[channel] = None
        if len(self._newcomers) > MOST_NEWCOMERS:
            next(iter(self._newcomers)).end("it does not say who it is, and others wait")


class Newcomer:
    """Handler of a connection that has not shown yet who it is."""

    def __init__(self, acceptor: Acceptor, channel: Channel, timer: LoopTimer) -> None:
        self._acceptor = acceptor
        self._channel = channel
        self._timer = timer
        self._hello: Hello | None = None
        self._nonce = b""

    def received(self, message: Any) -> None:
        if isinstance(message, Hello) and self._hello is None:
            self._hello = message
            if self._channel.local:
                self._leave()
                self._acceptor.admit(self._channel, message, b"")
            else:
                self._nonce = make_nonce()
                self._channel.send(Challenge(self._nonce))
        elif isinstance(message, Proof) and self._hello is not None:
            self._leave()
            self._judge(self._hello, message.evidence)
        else:
            raise FrameError(f"an unknown peer sent {type(message).__name__} out of turn")

    def _judge(self, hello: Hello, evidence: bytes) -> None:
        token = self._acceptor.token
        said = ENCODER.encode(hello), self._nonce, binding_of(self._channel.socket)
        if proves(evidence, token, "join", *said):
            self._acceptor.admit(self._channel, hello, prove(token, "welcome", *said))
        else:
            self._acceptor.refuse(self._channel, WRONG_TOKEN)

    def _leave(self) -> None:
        self._timer.cancel()
        self._acceptor.forget(self._channel)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"an unknown peer announced {payload.nbytes} bytes before the handshake")

    def lost(self, reason: str) -> None:
        self._leave()


class Applicant:
    """Handler of a connection that waits for the answer to its `Hello`, and hands it to `handler` with the Welcome."""

    def __init__(
        self, channel: Channel, hello: Hello, token: str, decoder: "Decoder[Any]", handler: ConnectionHandler
    ) -> None:
        self.answer: Welcome | Rejected | None = None
        self.gone = False
        self._channel, self._hello, self._token = channel, hello, token
        self._decoder, self._handler = decoder, handler
        self._said: tuple[bytes, ...] = ()

    def received(self, message: Any) -> None:
        """Nothing but an answer can come now; what comes after a Welcome is for the handler."""
        if isinstance(message, Challenge):
            self._said = ENCODER.encode(self._hello), message.nonce, binding_of(self._channel.socket)
            self._channel.send(Proof(prove(self._token, "join", *self._said)))
        elif isinstance(message, Welcome) and not self._trusts(message):
            self.answer = Rejected(WRONG_TOKEN)
        else:
            self.answer = message
            if isinstance(message, Welcome):
                self._channel.parser.accept_all(self._decoder)
                self._channel.handler = self._handler

    def _trusts(self, message: Welcome) -> bool:
        if self._channel.local:
            return True
        return bool(self._said) and proves(message.evidence, self._token, "welcome", *self._said)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the server announced {payload.nbytes} bytes before the handshake")

    def lost(self, reason: str) -> None:
        self.gone = self.answer is None
        self.answer = self.answer or Rejected(reason)


def join(
    loop: Loop,
    address: str,
    hello: Hello,
    decoder: "Decoder[Any]",
    handler: ConnectionHandler,
    timeout_s: float = 30.0,
    *,
    token: str = "",
) -> Channel:
    """Connect to a server and say who one is; what comes after `Welcome` goes to `handler`.

    The channel is closed in forked children, so that they do not hide a death of this process.

    Args:
        loop: serves the connection.
        address: of the server.
        hello: who one is.
        decoder: of all messages that may come after the handshake.
        handler: of them.
        timeout_s: how long the server may take.
        token: of the job; over TCP both sides prove that they know it.

    Raises:
        UnreachableError: if nobody answers in time.
        UsageError: if the server refuses, and why, or is not the job's.
    """
    hello = msgspec.structs.replace(hello, nonce=make_nonce())
    channel = Channel(connect(address, timeout_s), TO_NEWCOMER, f"the server at {address}", takes_fds=True)
    channel.parser.one_at_a_time = True
    close_in_children(channel)
    applicant = Applicant(channel, hello, token, decoder, handler)
    loop.add(channel, applicant)
    try:
        check_server(channel, token)
    except UsageError as error:
        applicant.answer = Rejected(str(error))
    else:
        channel.send(hello)
        loop.run_until(lambda: applicant.answer, timeout_s)
    if isinstance(applicant.answer, Welcome):
        return channel
    channel.close()
    kind = UsageError if applicant.answer and not applicant.gone else UnreachableError
    reason = applicant.answer.reason if applicant.answer else f"no answer within {timeout_s:g} s"
    if applicant.gone and not (channel.local or isinstance(channel.socket, TlsSocket)):
        reason += "; if the job has TLS, give --tls-ca or POLYRHYTHM_TLS_CA"
    tried = "cannot reach" if hello.role == "control" else f"{hello.role} {hello.rank} cannot join"
    raise kind(f"{tried} job {hello.job!r} at {address}: {reason}")


def check_server(channel: Channel, token: str) -> None:
    """Before anything is said to it."""
    if channel.local:
        check_user(channel.socket)
    elif not token:
        raise UsageError("over TCP the token of the job is needed; set POLYRHYTHM_TOKEN")
