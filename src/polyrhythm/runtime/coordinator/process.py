"""The coordinator's process: ``python -m polyrhythm.runtime.coordinator.process``, as the launcher starts it."""

import logging
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import torch

from polyrhythm.errors import BROKEN
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.wire.job_config import JobConfig


def serve(config: JobConfig, listeners: Sequence[socket.socket]) -> int:
    """Body of a coordinator process; it returns after the last worker, with the exit status."""
    logging.basicConfig(level=logging.INFO, format="polyrhythm coordinator: %(message)s")
    torch.set_num_threads(1)
    server = CoordinatorServer(config, *listeners)
    # Who ends a whole job, as Slurm does, ends its workers too, and they need the servers for a last checkpoint.
    signal.signal(signal.SIGTERM, lambda *_: server.end_within(config.grace))
    warm_up()
    server.run()
    return BROKEN if server.broken else 0


if __name__ == "__main__":  # descriptors of the listeners; the config comes on standard input
    made = msgspec.json.decode(sys.stdin.buffer.read(), type=JobConfig)
    sys.exit(serve(made, [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]))
