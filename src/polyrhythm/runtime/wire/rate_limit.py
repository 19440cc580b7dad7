"""Emulated thin links: the kernel holds what a process sends over a TCP connection down to a rate.

It needs no rights, and each connection is held down by itself: so it plays the network card of a worker that sends
over one connection at a time, as in a push or a ring. What competes for a link is not played. Linux only, where the
first ten segments of a connection leave at once, 650 kB over loopback, and later one of 64 kB after a pause: messages
should be longer.
"""

import os
import socket
import struct
from contextlib import suppress

from polyrhythm.errors import UsageError

RATE = "POLYRHYTHM_LINK_BYTES_PER_S"
"""Environment variable of a worker with the rate of its emulated link, in bytes/s; without it nothing is held down."""

OPTION = 47
"""SO_MAX_PACING_RATE of Linux, which Python's socket module does not name."""

LARGEST = 2**32 - 2
"""Larger rates do not fit into the option, and mean none."""


def pace(connection: socket.socket, bytes_per_s: float) -> None:
    """Let no more than so many bytes a second out of a TCP connection, or of those that a listening socket accepts.

    Raises:
        UsageError: where the system cannot.

    >>> with socket.socket() as connection:
    ...     pace(connection, 25e6)
    ...     connection.getsockopt(socket.SOL_SOCKET, OPTION)
    25000000
    """
    try:
        # As bytes: Python takes no number above 2**31 here.
        connection.setsockopt(socket.SOL_SOCKET, OPTION, struct.pack("=I", max(1, int(min(bytes_per_s, LARGEST)))))
    except OSError as error:
        raise UsageError(
            f"links of {bytes_per_s:g} bytes/s cannot be emulated here: {error.strerror}; use Linux, or take "
            "bandwidth_gbps away"
        ) from error


def pace_own(connection: socket.socket) -> None:
    """The same at the rate of this worker's link, if it has one."""
    if text := os.environ.get(RATE):
        pace(connection, read_rate(text))


def read_rate(text: str) -> float:
    with suppress(ValueError):
        if (rate := float(text)) > 0:
            return rate
    raise UsageError(f"{RATE} must be a number of bytes a second, more than 0, but got {text!r}; unset it")
