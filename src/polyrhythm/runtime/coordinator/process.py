"""The coordinator's process: ``python -m polyrhythm.runtime.coordinator.process``, as the launcher starts it."""

import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
import torch

from polyrhythm.errors import BROKEN, SpecError, UsageError
from polyrhythm.runtime.coordinator.recovery.keeper import AGAIN, CoordinatorKeeper
from polyrhythm.runtime.coordinator.recovery.standby import Standby
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.wire.connection import BACKLOG
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.memory import AVAILABLE, RecoveryMemory


class CoordinatorOrder(msgspec.Struct, frozen=True):
    """What a launcher asks of this process: to serve, or to be the standby of the coordinator at `first`."""

    config: JobConfig
    first: Address | None = None


def read_order(text: bytes) -> CoordinatorOrder:
    """An order as a launcher writes it.

    Raises:
        UsageError: if what it names is not there any more, as the file of a policy.
    """
    try:
        return msgspec.json.decode(text, type=CoordinatorOrder)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise


def stand_by(config: JobConfig, first: Address, listeners: Sequence[socket.socket], memory: RecoveryMemory) -> int:
    """Follow the coordinator of another host until the job is over, or serve in its place; the exit status.

    Nobody can connect to the listeners before that.
    """
    prepare()
    warm_up()
    if not memory.begun and not Standby(config, first, memory).follow():
        return 0
    try:
        for listener in listeners:
            listener.listen(BACKLOG)
    except OSError as error:  # the name is ours, and somebody else listens there
        logging.error("the standby cannot listen on %s: %s; the job ends", config.standby, error.strerror)  # noqa: TRY400 (one line for the user)
        return 1
    return keep_serving(config, listeners, memory)


def keep_serving(config: JobConfig, listeners: Sequence[socket.socket], memory: RecoveryMemory | None = None) -> int:
    """As `serve`, in a process of its own, which is followed by another one if it dies."""
    prepare()
    if not config.max_coordinator_restarts or not AVAILABLE:
        return serve(config, listeners)
    memory = memory or RecoveryMemory.create(config.shards)
    memory.begin()
    warm_up()
    try:
        return CoordinatorKeeper(partial(serve, config, listeners), config.max_coordinator_restarts, memory).run()
    finally:
        for listener in listeners:
            refuse(listener)


def refuse(listener: socket.socket) -> None:
    """Nobody is awaited any more, whoever else holds the socket, and those who wait are told."""
    with suppress(OSError):
        listener.setblocking(False)
        listener.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def prepare() -> None:
    logging.basicConfig(level=logging.INFO, format="polyrhythm coordinator: %(message)s")
    torch.set_num_threads(1)
    allow_descriptors()


def allow_descriptors() -> None:
    """As many as the system lets a process have: each worker takes some, and here nothing is asked by `select`."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(config: JobConfig, listeners: Sequence[socket.socket], memory: RecoveryMemory | None = None) -> int:
    """Body of a coordinator process; it returns after the last worker, with the exit status.

    With `memory` it goes on from what one before it has left there, and leaves word for the next one.
    """
    prepare()
    try:
        server = CoordinatorServer(config, *listeners, memory=memory)
    except SpecError as error:  # another one would fare no better, as where the file of a policy is gone
        return tell_failed(error)
    # Who ends a whole job, as Slurm does, ends its workers too, and they need the servers for a last checkpoint.
    signal.signal(signal.SIGTERM, lambda *_: server.end_within(config.grace))
    warm_up()
    server.run()
    if server.again and not server.broken:
        return AGAIN
    return BROKEN if server.broken else 0


def tell_failed(error: UsageError) -> int:
    """Say in one line why nothing can be served; the exit status."""
    logging.error("cannot serve the job: %s", error)
    return BROKEN


def main() -> int:
    """Descriptors of the memory and of the listeners are arguments; the order comes on standard input."""
    gc.freeze()  # what was imported is no garbage: without this, Python looks through all of it now and at the end
    with open(0, "rb", closefd=False) as order:
        try:
            asked = read_order(order.read())
        except UsageError as error:
            prepare()
            return tell_failed(error)
    places = [int(descriptor) for descriptor in sys.argv[1].split(",") if descriptor]
    given = RecoveryMemory(places) if places else None
    sockets = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[2:]]
    if asked.first is not None and given is not None:
        return stand_by(asked.config, asked.first, sockets, given)
    return keep_serving(asked.config, sockets, given)


if __name__ == "__main__":
    sys.exit(main())
