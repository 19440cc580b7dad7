"""A TLS socket that our channels use as they use a plain one."""

import socket
import ssl
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

UNREADY = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsSocket(ssl.SSLSocket):
    """Non-blocking, it reads and writes as much as it can in a call: OpenSSL does one record of 16 kB."""

    _binding: bytes | None = None

    @property
    def binding(self) -> bytes:
        """Digest of the certificate that the server has shown, the same at both ends; after the handshake."""
        if self._binding is None:
            shown = self.context_certificate if self.server_side else self.getpeercert(True)
            self._binding = sha256(shown or b"").digest()
        return self._binding

    @property
    def context_certificate(self) -> bytes:
        made: bytes = getattr(self.context, "shown", b"")
        return made

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        view, got = memoryview(buffer).cast("B"), 0
        while got < len(view):
            try:
                count = super().recv_into(view[got:], None, flags)
            except UNREADY:
                if got:
                    break
                raise BlockingIOError from None
            got += count
            if not count or self.gettimeout() != 0:
                break
        return got

    def send(self, data: Any, flags: int = 0) -> int:
        view, sent = memoryview(data).cast("B"), 0
        while sent < len(view):
            try:
                sent += super().send(view[sent:], flags)
            except UNREADY:
                if sent:
                    break
                raise BlockingIOError from None
            if self.gettimeout() != 0:
                break
        return sent

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        total = 0
        for part in buffers:
            try:
                sent = self.send(part)
            except BlockingIOError:
                if total:
                    break
                raise
            total += sent
            if sent < memoryview(part).nbytes:
                break
        return total

    def shutdown(self, how: int) -> None:
        """From any thread. The ssl module would read on without TLS."""
        socket.socket.shutdown(self, how)


def binding_of(sock: socket.socket) -> bytes:
    """See `TlsSocket.binding`; empty for a plain socket."""
    return sock.binding if isinstance(sock, TlsSocket) else b""
