"""How a worker finds its job: from the environment that a launcher has made, or by starting a coordinator of its
own.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import msgspec

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.launch.forked import COORDINATOR_PROGRAM, RunningProcess, WorkerFork
from polyrhythm.runtime.launch.job_file import SEARCH_VARIABLES
from polyrhythm.runtime.launch.nodes import ALONE, DEFAULT_PORT, TOKEN, Node
from polyrhythm.runtime.wire.config_sources import HANDED_ON, handed_on, misspelt, told_later, with_session
from polyrhythm.runtime.wire.connection import ADDRESS, bind, listen, reach
from polyrhythm.runtime.wire.credentials import make_token
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.parent_death import aside, dies_with_us
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.rate_limit import pace
from polyrhythm.runtime.wire.recovery.memory import AVAILABLE, RecoveryMemory
from polyrhythm.runtime.wire.setting_values import check_job_name
from polyrhythm.runtime.wire.tls.cover import take_up
from polyrhythm.runtime.wire.tls.files import files_of
from polyrhythm.runtime.wire.tls.wrapping import called

RUN = "POLYRHYTHM_RUN_ID"
"""Environment variable of a worker, on all hosts the same, that tells this run of a job from others of its name."""

COORDINATOR = "POLYRHYTHM_COORDINATOR"
"""Environment variable with the coordinator's `Address` as JSON, set by ``polyrhythm run``."""

GROUP = "POLYRHYTHM_GROUP"
"""Environment variable of a process of a replica group: the number of its group, and how many there are, as ``0:2``."""

TORCHRUN_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
"""Environment variables that tell one torchrun from another, and from itself after a restart."""

PATIENCE_S, QUIET_S = 60.0, 5.0
"""How long whoever is started before the coordinator waits for it, and how long without a word."""


ATTEMPTS = 5
"""So many connections that end in the handshake are no accident."""


class Found(NamedTuple):
    """This worker's rank, the address of its job's coordinator, and what the coordinator has yet to be told of the
    session.
    """

    rank: int
    coordinator: Address
    arguments: Mapping[str, Any]


def find_coordinator(arguments: Mapping[str, Any], trainings: int = 0) -> Found:
    """This worker's job; rank 0 starts its coordinator if nobody has.

    Args:
        arguments: those of the session that the script has given.
        trainings: that it has finished in this process; the coordinator is there then.

    Raises:
        UnreachableError: if the coordinator does not come up.
    """
    group = os.environ.get(GROUP, "").partition(":")[0]
    rank = int(group) if group else read_number("RANK", 0)
    if COORDINATOR in os.environ:
        return Found(rank, msgspec.json.decode(os.environ[COORDINATOR].encode(), type=Address), arguments)
    job = job_of(os.environ) if "TORCHELASTIC_RUN_ID" in os.environ else uuid.uuid4().hex
    workers = read_number("WORLD_SIZE", 1)
    node = node_of(workers)
    take_up(files_of(os.environ), os.environ, node.count)
    given = handed_on(os.environ)
    later = told_later(arguments, given)
    if rank == 0 and not trainings:
        config, overruled = with_session(given, {} if later else arguments)
        say(*overruled, *(() if HANDED_ON in os.environ else misspelt(os.environ, SEARCH_VARIABLES.values())))
        start_coordinator(
            msgspec.structs.replace(
                config, job=job, workers=workers, token=node.token or make_token(), listen=node.listen
            )
        )
    address = Address(node.coordinator if node.rank else coordinator_address(job), job, node.token)
    wait_for_coordinator(address.coordinator)
    return Found(rank, address, later)


def job_of(environment: Mapping[str, str]) -> str:
    """The name of the job that a torchrun has started."""
    name = "-".join(environment.get(variable, "") for variable in TORCHRUN_JOB)
    return check_job_name(name, f"the job's name, of {', '.join(TORCHRUN_JOB)},")


def node_of(workers: int) -> Node:
    """The place of this host in a job that torchrun, or whatever sets its variables, has started on several."""
    local = read_number("LOCAL_WORLD_SIZE", workers)
    if local >= workers:
        return ALONE
    token = os.environ.get(TOKEN, "")
    if not token:
        raise UsageError(
            f"this job has workers on several hosts; set {TOKEN} to the same secret on each, or use polyrhythm run"
        )
    port = read_number("POLYRHYTHM_PORT", read_number("MASTER_PORT", DEFAULT_PORT) + 1)
    rank, count = read_number("GROUP_RANK", read_number("RANK", 0) // local), -(-workers // local)
    node = Node(rank, count, os.environ.get("MASTER_ADDR", ""), port, token)
    os.environ.setdefault(ADDRESS, node.address)
    return node


class CoordinatorStart:
    """Starts a job's coordinator, and another one when its process was killed, as long as it is not closed.

    It holds what must outlive that process: the sockets on which workers are awaited, and the memory in which
    coordinators leave word for each other.

    Args:
        config: of the job.
        bound: whether the coordinator ends with this process.
        first: the coordinator whose standby this one is.
        fork: what it is forked from, if it is bound to this process.
    """

    def __init__(
        self, config: JobConfig, bound: bool = False, first: Address | None = None, fork: WorkerFork | None = None
    ) -> None:
        self._fork = fork
        self.most, self.made = config.max_coordinator_restarts, 0
        self._order = {"config": config, "first": first}
        self._is_standby, self._bound, self._stack = first is not None, bound, ExitStack()
        with ExitStack() as stack:
            self._listeners = [listener.fileno() for listener in open_addresses(config, stack, first is None)]
            self._memory = RecoveryMemory.create(config.shards) if AVAILABLE else None
            self._stack.push(stack.pop_all())
        if self._memory is not None:
            self._stack.callback(self._memory.close)

    def start(self) -> RunningProcess:
        """A process; it ends by itself after the last worker."""
        memory = self._memory.descriptors if self._memory is not None else ()
        with TemporaryFile(buffering=0) as order:
            order.write(msgspec.json.encode(self._order))
            order.seek(0)
            forked = self._fork and self._fork.start_coordinator(order.fileno(), memory, self._listeners)
            return forked or self._start_by_itself(order, memory)

    def _start_by_itself(self, order: IO[bytes], memory: Sequence[int]) -> RunningProcess:
        return subprocess.Popen(
            [sys.executable, "-m", COORDINATOR_PROGRAM, ",".join(map(str, memory)), *map(str, self._listeners)],
            stdin=order,
            pass_fds=[*memory, *self._listeners],
            preexec_fn=aside(dies_with_us() if self._bound else ignore, signal.SIGINT, signal.SIGHUP),
        )

    def again(self) -> RunningProcess | None:
        """Another one; none if too many have been killed."""
        if self.made >= self.most:
            return None
        self.made += 1
        return self.start()

    @property
    def waits(self) -> bool:
        """Whether it is a standby that has not taken over."""
        return self._is_standby and self._memory is not None and not self._memory.begun

    def close(self) -> None:
        self._stack.close()


def start_coordinator(config: JobConfig) -> RunningProcess:
    """Start a coordinator that ends by itself after the last worker; nobody starts another one if it is killed."""
    start = CoordinatorStart(config)
    try:
        return start.start()
    finally:
        start.close()


def ignore() -> None:
    """A coordinator that ends by itself."""


def open_addresses(config: JobConfig, stack: ExitStack, listens: bool = True) -> list[socket.socket]:
    """Sockets on which a coordinator's workers are awaited: that of its host, and others; emulated links are thin from
    now on. Those of a standby do not listen yet.
    """
    if config.listen and not config.token:
        raise UsageError(f"address {config.listen[0]} can be reached by others; give the job a token")
    addresses = (coordinator_address(config.job), *config.listen)
    listeners = [stack.enter_context((listen if listens else bind)(address)) for address in addresses]
    for listener, address in zip(listeners, addresses, strict=True):
        if address in config.rates:
            pace(listener, config.rates[address])
    return listeners


def wait_for_coordinator(coordinator: str, standby: str = "") -> None:
    """Until it answers, or its standby in its place. One that is there and ends the connection again and again does not
    speak as we do.
    """
    begun, attempts, told = time.monotonic(), 0, False
    deadline = begun + PATIENCE_S
    while not (standby and answers(standby)):
        try:
            sock = reach(coordinator, PATIENCE_S)
            attempts += 1
            called(sock, coordinator).close()
        except UnreachableError:
            if attempts == ATTEMPTS or time.monotonic() > deadline:
                raise
            if not told and time.monotonic() > begun + QUIET_S:
                told = True
                say(f"nobody answers at {coordinator} yet; it is tried for {PATIENCE_S:g} s")
            time.sleep(0.05)
        else:
            return


def answers(address: str, patience_s: float = 2.0) -> bool:
    """Whether somebody listens there."""
    try:
        reach(address, patience_s).close()
    except UnreachableError:
        return False
    return True


def read_number(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise UsageError(f"environment variable {name} must be a number but is {value!r}")
    return int(value)


def reserve_port(port: int = 0) -> socket.socket:
    """A socket that keeps a TCP port on all of this host's interfaces until it is closed.

    Nobody gets the port by chance. Who is told of it can listen there, often and for as long as they like, if they set
    SO_REUSEADDR, as torch's stores and we do: this socket never listens, so Linux lets them.

    Args:
        port: 0 is any that is free.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"port {port} is needed for the store of the workers' process group: {error.strerror}; "
            "give another --master-port, or an --rdzv-endpoint whose next port is free"
        ) from error
    return sock


def store_listener(host: str, port: int) -> socket.socket | None:
    """Where torch's store listens if those of one host reach it at `host`: on loopback, if that is a loopback address.

    None if it is not, or if the port is in use, perhaps by this process's store already.
    """
    try:
        places = {place[0] for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        if not all(ip_address(str(place)).is_loopback for place in places):
            return None
        own = str(min(places))  # 127.0.0.1 before ::1, if a name stands for both
        return socket.create_server((own, port), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
    except OSError:
        return None


@contextmanager
def store_port(node: Node) -> Iterator[int]:
    """The port on which rank 0 opens torch's own store (``MASTER_PORT``), kept for it on its host."""
    if node.rank:
        yield node.store_port
        return
    with reserve_port(node.store_port) as kept:
        yield port_of(kept)


def port_of(sock: socket.socket) -> int:
    """The port of a bound TCP socket."""
    return int(sock.getsockname()[1])
