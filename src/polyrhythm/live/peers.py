"""Whose process is at the other end of a TCP connection within this host, as the kernel knows it."""

import ipaddress
import os
import struct
from collections.abc import Iterator
from pathlib import Path

TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")

ESTABLISHED = "01"
"""The state of a connection; one that has ended is shown as root's."""


def is_own_user(address: str, port: int) -> bool:
    """Whether the client that connects from there is of our user, or of root, who reads everything anyway."""
    return user_of(address, port) in (0, os.getuid())


def user_of(address: str, port: int) -> int | None:
    """The user whose socket has this address; None if no connection has it any more."""
    names = {f"{written}:{port:04X}" for written in in_table(address)}
    for entry in entries():
        if entry[1] in names and entry[3] == ESTABLISHED:
            return int(entry[7])
    return None


def entries() -> Iterator[list[str]]:
    """Connections of this host: number, own address, other address, state, ... and the user as the eighth."""
    for table in TABLES:
        if table.exists():
            yield from (line.split() for line in table.read_text(encoding="ascii").splitlines()[1:])


def in_table(address: str) -> Iterator[str]:
    """An address as the kernel writes it, and as it writes it of a socket for both versions of IP.

    >>> list(in_table("127.0.0.1"))
    ['0100007F', '0000000000000000FFFF00000100007F']
    """
    packed = ipaddress.ip_address(address).packed
    yield words(packed)
    if len(packed) == 4:
        yield words(bytes(10) + b"\xff\xff" + packed)


def words(packed: bytes) -> str:
    """Of 32 bits each, in the order of this host's bytes."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
