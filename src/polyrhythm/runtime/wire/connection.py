"""A connection that carries frames, the addresses it can have, and what goes wrong with them.

An address is ``tcp:HOST:PORT`` or ``unix:@NAME``, one of Linux's abstract names, which leave no file behind and have no
permissions either. Who may come in is decided in `polyrhythm.runtime.wire.handshake`.
"""

import array
import contextlib
import errno
import ipaddress
import os
import socket
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from polyrhythm.errors import PolyrhythmError, UnreachableError, UsageError
from polyrhythm.lines import reason_of
from polyrhythm.runtime.wire.frames import MAX_BODY, FrameParser, Payload, encode, framed
from polyrhythm.runtime.wire.rate_limit import pace_own
from polyrhythm.runtime.wire.tls.sockets import TlsSocket
from polyrhythm.runtime.wire.tls.wrapping import called

MAX_QUEUED = 4096
"""Frames that wait for a peer that does not read; one more and it is given up."""

MAX_FDS = 8
"""File descriptors that one frame may hand over."""
FDS_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)

KEEP_ALIVE = 10, 5, 3
"""Of connections to servers, which are opened before `--hang-after` is known here, and of which heartbeats tell sooner:
see `keep_alive`. Those among workers, of which nothing else tells, follow it: `DeathWatch`.
"""

CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a connection whose other side may live."""

OPEN_CLIENTS: "weakref.WeakSet[Channel]" = weakref.WeakSet()

ADDRESS = "POLYRHYTHM_ADDRESS"
"""Environment variable with the address under which other hosts reach this one."""


class ConnectionHandler(Protocol):
    """What is done with what comes out of a channel. An error raised by either of the first two ends the channel."""

    def received(self, message: Any) -> None:
        """A message has arrived, its payload in place."""

    def destination(self, message: Any, payload: Payload) -> memoryview:
        """Where the payload of `message` goes; see `polyrhythm.runtime.wire.frames.Place`."""

    def lost(self, reason: str) -> None:
        """The connection has ended, for a `reason` that names the peer. Called once, and nothing after it."""


class Watcher(Protocol):
    def wants_write(self, channel: "Channel") -> None: ...

    def closing(self, channel: "Channel") -> None:
        """The socket is about to be closed."""


class Outgoing(NamedTuple):
    """Bytes that wait to be sent, with the file descriptors that travel beside the first of them."""

    data: memoryview
    fds: tuple[int, ...] = ()


class Channel:
    """One non-blocking connection; a `Loop` says when it can be read or written.

    Args:
        sock: connected stream socket, owned by the channel from now on.
        decoder: strict decoder of the messages that may come.
        peer: names the other side in errors.
        takes_fds: whether file descriptors are accepted (Unix sockets only); may be changed between messages.
        max_body: largest message that is accepted now, bytes.

    Attributes:
        closed: whether it has ended.
        cut: whether it has ended because nothing travels any more; the other side may live.
    """

    def __init__(
        self,
        sock: socket.socket,
        decoder: "msgspec.msgpack.Decoder[Any]",
        peer: str,
        takes_fds: bool = False,
        max_body: int = MAX_BODY,
    ) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock, *KEEP_ALIVE)
        self.socket = sock
        self.peer = peer
        self.local = sock.family == socket.AF_UNIX
        self.handler: ConnectionHandler | None = None
        self.parser = FrameParser(peer, decoder, self._destination, max_body)
        self.fds: deque[int] = deque()
        self.closed = self.cut = False
        self.watcher: Watcher | None = None
        self.takes_fds = takes_fds and self.local
        self._holds_more = sock.pending if isinstance(sock, TlsSocket) else None
        self._queue: deque[Outgoing] = deque()
        self.held: list[Any] = []
        self._reason = ""

    @property
    def sending(self) -> bool:
        """Whether bytes wait for the peer to take them; a payload must not change until they are gone."""
        return bool(self._queue)

    def hold(self, message: Any) -> None:
        """Send a message, or a frame that is made already, in front of the next one: both cost one call at each end."""
        self.held.append(message)

    def release(self) -> None:
        if self.held:
            self._pass_on([memoryview(self._behind_held(b""))])

    def send(
        self, message: Any, payload: memoryview | None = None, about: Payload | None = None, fds: Sequence[int] = ()
    ) -> None:
        """Send a frame, now or when the peer can take it; never blocks.

        Args:
            message: any msgspec struct.
            payload: bytes that follow; they are not copied, so they must not change while the channel is `sending`.
            about: type and count of the payload's numbers.
            fds: file descriptors to hand over.
        """
        frame = encode(message, about)
        first = memoryview(self._behind_held(frame) if self.held else frame)
        self._pass_on([first] if payload is None else [first, payload], fds)

    def _behind_held(self, frame: bytes) -> bytes:
        held, self.held = self.held, []
        return b"".join((*map(framed, held), frame))

    def _pass_on(self, parts: list[memoryview], fds: Sequence[int] = ()) -> None:
        if self.closed:
            return
        first = parts[0]
        if not self._queue and not (parts := self._send_now(parts, fds)):
            return
        for part in parts:
            self._queue.append(Outgoing(part, tuple(fds) if part is first else ()))
        if len(self._queue) > MAX_QUEUED:
            self._queue.clear()
            self.give_up(f"{self.peer} does not read; more than {MAX_QUEUED} messages waited for it")
        elif self._queue and self.watcher is not None:
            self.watcher.wants_write(self)

    def flush(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            left = self._send_now([item.data], item.fds)
            if left:
                self._queue.appendleft(Outgoing(left[0], item.fds if left[0] is item.data else ()))
                return

    def readable(self) -> None:
        self._read()
        while self._holds_more is not None and not self.closed and self._holds_more():
            self._read()  # which nothing else would tell of

    def _read(self) -> None:
        try:
            if (count := self._receive()) == 0:
                self.end(self._end_reason())
                return
            while count >= 0:
                for message in self.parser.take(count):
                    assert self.handler is not None, "a channel needs a handler before it is read"
                    self.handler.received(message)  # which may close the channel or change its handler
                    if self.closed:
                        return
                count = 0 if self.parser.more else -1
        except PolyrhythmError as error:
            self.end(str(error))
        except OSError as error:  # of this host, such as that no descriptor is left
            self.end(f"what {self.peer} sent could not be handled here: {error}")

    def end(self, reason: str) -> None:
        if self.closed:
            return
        self.close()
        if self.handler is not None:
            self.handler.lost(reason)

    def close(self) -> None:
        """Close without telling the handler."""
        if self.closed:
            return
        self.closed = True
        if self.watcher is not None:
            self.watcher.closing(self)
        self._queue.clear()
        self.socket.close()
        while self.fds:
            os.close(self.fds.popleft())

    def give_up(self, reason: str) -> None:
        """From any thread: end at the next turn of the loop, after what has arrived already."""
        self._reason = self._reason or reason
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> int:
        """Bytes received; 0 at the end, -1 if there were none after all.

        An error of the connection is its end. One in what is done with a message is not, and goes to the caller.
        """
        try:
            return self._receive_with_fds() if self.takes_fds else self.socket.recv_into(self.parser.buffer())
        except (BlockingIOError, InterruptedError):
            return -1
        except ConnectionResetError:  # it ended with something unread
            return 0
        except OSError as error:
            self.cut = error.errno in CUT
            self._reason = self._reason or f"{self.peer} is gone ({reason_of(error)})"
            return 0

    def _receive_with_fds(self) -> int:
        count, ancillary, flags, _ = self.socket.recvmsg_into([self.parser.buffer()], FDS_ROOM, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for _, _, data in ancillary:
            self.fds.extend(array.array("i", data))
        return count

    def _send_now(self, parts: list[memoryview], fds: Sequence[int]) -> list[memoryview]:
        """What of `parts` could not be sent; the first is the same object if nothing of it was."""
        try:
            if fds:
                sent = self.socket.sendmsg(parts, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            else:
                sent = self.socket.send(parts[0]) if len(parts) == 1 else self.socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return parts
        except OSError:
            # The peer is gone. What it sent before may still be there to be read, and ends in the reason.
            return []
        return [] if sent == len(parts[0]) and len(parts) == 1 else unsent(parts, sent)

    def _destination(self, message: Any, payload: Payload) -> memoryview:
        assert self.handler is not None, "a channel needs a handler before it is read"
        return self.handler.destination(message, payload)

    def _end_reason(self) -> str:
        cut = "" if self.parser.between_messages else " in the middle of a message"
        return self._reason or f"{self.peer} closed the connection{cut}"


def unsent(parts: list[memoryview], sent: int) -> list[memoryview]:
    for index, part in enumerate(parts):
        if sent < part.nbytes:
            return [part[sent:] if sent else part, *parts[index + 1 :]]
        sent -= part.nbytes
    return []


BACKLOG = 1024
"""Connections that wait to be accepted."""


def listen(address: str) -> socket.socket:
    """A listening socket.

    Raises:
        UsageError: for an address that cannot be read or is taken.
    """
    sock = bind(address)
    sock.listen(BACKLOG)
    return sock


def bind(address: str) -> socket.socket:
    """A socket that has an address, to which nobody can connect until it listens.

    Raises:
        UsageError: for an address that cannot be read or is taken.
    """
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on {address}: {listen_remedy(family, error)}") from error
    sock.setblocking(False)
    return sock


def listen_remedy(family: int, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return "this host has no such address; give its own" if error.errno == errno.EADDRNOTAVAIL else reason_of(error)
    if family == socket.AF_UNIX:
        return "the name is in use; is a job with the same id running?"
    return "the port is in use; choose another one"


def connect(address: str, timeout_s: float) -> socket.socket:
    """A connected socket, over TCP with TLS if this host has it.

    Raises:
        UnreachableError: if nobody answers.
        UsageError: if the one who does is not believed.
    """
    return called(reach(address, timeout_s), address)


def reach(address: str, timeout_s: float) -> socket.socket:
    """A connected socket before anything is said, as to see whether anybody listens at the other end.

    Raises:
        UnreachableError: if nobody does.
    """
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.settimeout(timeout_s)
    if family != socket.AF_UNIX:
        pace_own(sock)
    try:
        sock.connect(target)
    except OSError as error:
        sock.close()
        raise UnreachableError(
            f"cannot connect to {address}: {error.strerror or error}; is the job running?"
        ) from error
    return sock


def keep_alive(sock: socket.socket, idle_s: int, period_s: int, tries: int) -> None:
    """Have the kernel try a connection that idles for so long, and end it after so many tries in vain."""
    # Where nothing is sent nobody else notices that the network is cut. TCP_USER_TIMEOUT would also end a connection
    # whose other end is too busy to read; of those the heartbeats tell.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {socket.TCP_KEEPIDLE: idle_s, socket.TCP_KEEPINTVL: period_s, socket.TCP_KEEPCNT: tries}
    for option, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def address_of(sock: socket.socket) -> str:
    """The address under which a listening socket can be reached; says the port that was chosen for port 0."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:@{name[1:].decode()}"
    return f"tcp:{name[0]}:{name[1]}"


def parse_address(address: str) -> tuple[int, Any]:
    """Address family and what `socket.bind` takes.

    >>> parse_address("tcp:127.0.0.1:80")[1], parse_address("unix:@job")[1]
    (('127.0.0.1', 80), '\\x00job')
    """
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest.startswith("@") and len(rest) > 1:
        return socket.AF_UNIX, "\0" + rest[1:]
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return socket.AF_INET, (host, int(port))
    raise UsageError(f"address must be tcp:HOST:PORT or unix:@NAME but got {address!r}")


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this host only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("127.example.com")
    (True, False, False)
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def close_in_children(channel: Channel) -> None:
    """Close the channel in forked children, such as loader workers: otherwise they hide the death of their parent."""
    OPEN_CLIENTS.add(channel)


def _close_clients() -> None:
    for channel in list(OPEN_CLIENTS):
        channel.closed = True
        channel.socket.close()  # not channel.close(): the epoll instance is still the parent's too


os.register_at_fork(after_in_child=_close_clients)
