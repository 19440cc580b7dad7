"""Where processes listen for TCP connections, as the kernel shows it."""

import ipaddress
from collections.abc import Iterable, Iterator
from pathlib import Path

LISTENS = "0A"


def listening(pids: Iterable[int]) -> list[str]:
    """Address and port of each socket on which one of these processes listens."""
    wanted = {inode for pid in pids for inode in sockets_of(pid)}
    return sorted({place for place, inode in all_listening() if inode in wanted})


def sockets_of(pid: int) -> Iterator[str]:
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if (target := str(descriptor.readlink())).startswith("socket:["):
                yield target[len("socket:[") : -1]
    except OSError:  # ended meanwhile
        return


def all_listening() -> Iterator[tuple[str, str]]:
    """Place and inode of each."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                host, _, port = fields[1].partition(":")
                yield f"{address_of(host)} {int(port, 16)}", fields[9]


def address_of(words: str) -> str:
    """The kernel writes 32 bits at a time, in the order of this machine.

    >>> address_of("0100007F"), address_of("0" * 32)
    ('127.0.0.1', '::')
    """
    parts = (bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return str(ipaddress.ip_address(b"".join(parts)))
