"""What a worker does when its coordinator has died and another one takes its place: it stands, and says where."""

import logging
import time

import msgspec

from polyrhythm.errors import CoordinatorLostError, UnreachableError
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.shard_protocol import UNREAD
from polyrhythm.runtime.worker.context import WorkerContext

log = logging.getLogger(__name__)

PARTING_S = 0.05
"""How long others have to read what this worker has put into the last exchange that it has completed."""


def come_back(
    context: WorkerContext, standing: Returned, ready: Ready | None, inside: bool, lost: CoordinatorLostError
) -> None:
    """Meet the next coordinator; until that opens a phase, nothing that it says concerns this worker.

    Whatever the one before it has said and this worker has not followed is void.

    Raises:
        CoordinatorLostError: if there is none.
    """
    log.info("rank %d: %s", context.rank, lost)
    time.sleep(PARTING_S)
    context.exchange.abandon(f"rank {context.rank} has lost the coordinator")
    context.exchange.part()
    phase = 0 if context.phase is None else context.phase.number
    returned = msgspec.structs.replace(standing, ready=ready, done=context.done, phase=phase, inside=inside)
    context.pending.clear()
    context.generation += 1
    context.collective_failed, context.version = True, UNREAD
    try:
        context.client.come_back(returned)
    except UnreachableError:
        raise lost from None
