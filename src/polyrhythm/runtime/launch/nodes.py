"""Which of a job's hosts this one is, from torchrun's flags, and how the hosts reach one another."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.runtime.launch.counts import read_hosts
from polyrhythm.runtime.wire.connection import parse_address
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.recovery.memory import AVAILABLE

DEFAULT_PORT = 29400
"""Port of the coordinator if the endpoint names none; torchrun's for its own meeting point."""

TOKEN = "POLYRHYTHM_TOKEN"
"""Environment variable with the secret that opens the job's acceptor to other hosts."""

TRANSPORTS = ("static", "c10d")
"""Values of torchrun's --rdzv-backend that mean the same here: the coordinator is the meeting point."""


GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable that gloo reads."""

LOOPBACK_INTERFACE = "lo"


@dataclass(frozen=True)
class Node:
    """One host of a job.

    Args:
        rank: of this host, from 0.
        count: hosts of the job.
        host: name or address of host 0, where the coordinator is; empty if there is only one.
        port: TCP port of the coordinator.
        token: see `TOKEN`; one host needs none.
        store_port: TCP port of host 0 for torch's own store; 0 is any, on one host.
        least: hosts with which the job begins; as many as there are if it is 0.
        standby: where the coordinator is if host 0 is lost, as ``tcp:HOST:PORT``; empty if nowhere.
    """

    rank: int = 0
    count: int = 1
    host: str = ""
    port: int = DEFAULT_PORT
    token: str = ""
    store_port: int = 0
    least: int = 0
    standby: str = ""

    @cached_property
    def is_standby(self) -> bool:
        """Whether the standby's address is one of this host's."""
        return bool(self.standby) and is_own(parse_address(self.standby)[1][0])

    @property
    def changing(self) -> str:
        """MIN:MAX, if hosts may come and go."""
        return f"{self.least}:{self.count}" if 0 < self.least < self.count else ""

    @cached_property
    def coordinator(self) -> str:
        """Where workers on other hosts than 0 reach the coordinator."""
        return f"tcp:{socket.gethostbyname(self.host)}:{self.port}"

    @property
    def listen(self) -> tuple[str, ...]:
        """Where the coordinator listens beside its socket on its own host."""
        return (self.coordinator,) if self.count > 1 else ()

    @property
    def address(self) -> str:
        return own_address(self.host, self.port)


ALONE = Node()


def own_interface(node: Node, environment: Mapping[str, str]) -> dict[str, str]:
    """For gloo, which otherwise listens where the name of this host leads: a job on one host needs loopback only.

    >>> own_interface(Node(count=2), {}), own_interface(ALONE, {"GLOO_SOCKET_IFNAME": "eth0"})
    ({}, {})
    """
    if node.count > 1 or GLOO_INTERFACE in environment:
        return {}
    there = any(name == LOOPBACK_INTERFACE for _, name in socket.if_nameindex())
    return {GLOO_INTERFACE: LOOPBACK_INTERFACE} if there else {}


def read_node(options: JobConfig) -> Node:
    """The place of this host in the job."""
    least, count = read_hosts(options.nnodes, options.label("nnodes"))
    if options.rdzv_backend not in TRANSPORTS:
        place = options.label("rdzv_backend")
        raise UsageError(f"{place} {options.rdzv_backend} is not known here; leave it out, or give c10d")
    if not 0 <= options.node_rank < count:
        place = options.label("node_rank")
        raise UsageError(f"{place} must be from 0 to {count - 1} with --nnodes {count}, not {options.node_rank}")
    if count == 1:
        if options.standby:
            raise UsageError(f"{options.label('standby')} {options.standby} needs several hosts; give --nnodes")
        return Node(store_port=options.master_port or 0)
    host, port = read_endpoint(options)
    token = os.environ.get(TOKEN, "")
    if not token:
        raise UsageError(
            f"a job on several hosts needs a secret; set {TOKEN} to the same value on each, such as that of "
            "openssl rand -hex 16"
        )
    node = Node(options.node_rank, count, host, port, token, port + 1, least, read_standby(options, port))
    if node.is_standby and not node.rank:
        raise UsageError(
            f"{options.label('standby')} {options.standby} is host 0, whose loss it is for; name another one"
        )
    return node


def read_standby(options: JobConfig, port: int) -> str:
    """Address of the standby's coordinator; on the same port as the first one's if none is given.

    Raises:
        UsageError: for a host that cannot be found, or where no coordinator can follow another one.
    """
    if not options.standby:
        return ""
    label = f"{options.label('standby')} {options.standby}"
    if not (AVAILABLE and options.max_coordinator_restarts):
        raise UsageError(f"{label} needs Linux, and --max-coordinator-restarts of at least 1")
    other, _, given = options.standby.partition(":")
    if given and not (given.isdecimal() and 0 < int(given) < 65536):
        raise UsageError(f"{label} must be HOST or HOST:PORT of a host of the job")
    try:
        address = socket.gethostbyname(other)
    except OSError as error:
        raise UsageError(f"{label} cannot be found: {error}") from error
    return f"tcp:{address}:{given or port}"


def is_own(host: str) -> bool:
    """Whether an address is one of this host's.

    >>> is_own("127.0.0.1"), is_own("192.0.2.1")
    (True, False)
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
        return True


def read_endpoint(options: JobConfig) -> tuple[str, int]:
    """Host and port of the coordinator, from --rdzv-endpoint or, as torchrun's static rendezvous has it,
    --master-addr.
    """
    given = options.rdzv_endpoint
    place = options.label("rdzv_endpoint") if given else "--rdzv-endpoint"
    if not given and options.master_addr != "127.0.0.1":
        given = f"{options.master_addr}:{options.master_port or DEFAULT_PORT}"
        place = options.label("master_addr")
    host, colon, port = given.partition(":")
    if not host or (colon and not (port.isdecimal() and 0 < int(port) < 65535)):
        raise UsageError(f"{place} must be HOST or HOST:PORT of host 0, the same on every host, but is {given!r}")
    try:
        socket.gethostbyname(host)
    except OSError as error:
        raise UsageError(f"{place} names host {host!r}, which cannot be found: {error}") from error
    return host, int(port) if port else DEFAULT_PORT


def own_address(host: str, port: int) -> str:
    """The address of this host from which it would reach another; nothing is sent.

    >>> own_address("127.0.0.1", 80)
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, port))
        except OSError as error:
            raise UnreachableError(f"host {host!r} cannot be reached from here: {error}") from error
        return str(sock.getsockname()[0])
