"""Where connections become TLS: those over TCP, if the environment of this process names an authority."""

import os
import socket
import ssl

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.runtime.wire.tls.files import files_of, reason_of


def called(sock: socket.socket, address: str) -> socket.socket:
    """A connection that this process has opened, after the handshake.

    Raises:
        UsageError: if the server is not believed, or does not speak TLS.
        UnreachableError: if it ends the connection meanwhile, as one that dies, or does not answer in time.
    """
    files = files_of(os.environ)
    if sock.family == socket.AF_UNIX or not files.ca:
        return sock
    try:
        wrapped = files.client().wrap_socket(sock, do_handshake_on_connect=False)
        wrapped.do_handshake()  # told so it also fails on a connection that is gone by now, which is wrapped as it is
    except OSError as error:
        sock.close()
        answered = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        raise (UsageError if answered else UnreachableError)(
            f"no TLS with {address}: {reason_of(error)}; give every host of the job --tls-cert, --tls-key and --tls-ca "
            "of one authority"
        ) from None
    return wrapped


def accepted(sock: socket.socket) -> socket.socket:
    """A connection that has come to this process; the handshake is made when it is read for the first time."""
    files = files_of(os.environ)
    if sock.family == socket.AF_UNIX or not files.cert:
        return sock
    return files.server().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
