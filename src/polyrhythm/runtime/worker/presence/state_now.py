"""What of the job's state a script has, to keep it, at the end of an epoch or within one."""

import msgspec

from polyrhythm.errors import CoordinatorLostError
from polyrhythm.runtime.wire.protocol import EpochDone
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.worker.context import StepMode, WorkerContext

ATTEMPTS = 20
"""How often the state of several servers is fetched until it is that of one moment."""


def fetch(context: WorkerContext, side: StepMode) -> Resumption | None:
    """Bring what the servers have into the replica; within an epoch, what of it is left.

    None if what the replica has then is not all that the job has made, or more.

    Raises:
        CoordinatorLostError: if the servers are lost.
    """
    client = context.client
    if context.done:
        if side.on_servers:
            client.download(context.version)
        return None
    if side.on_servers:
        answers = (client.ask_state(context.version) for _ in range(ATTEMPTS))
        return next((told.resumption for told in answers if told.version is not None), None)
    return None if side.left is None else among_workers(context, side)


def among_workers(context: WorkerContext, side: StepMode) -> Resumption | None:
    """The workers have the state; without a coordinator nobody knows the policy."""
    left = tuple(sample_range._replace(epoch=0) for sample_range in side.left or ())
    try:
        told = context.client.ask_state().resumption
    except CoordinatorLostError:  # as soon as the worker waits it meets the next one
        return None
    return msgspec.structs.replace(told, left=left, state=side.standing().state)


def finish(context: WorkerContext, side: StepMode, message: EpochDone) -> None:
    """An epoch is over: bring what is final for it into the replica; where a newcomer passes it, what servers have now.

    Raises:
        CoordinatorLostError: if the servers are lost.
    """
    if context.phase is not None:
        side.end_epoch(message.version)
    elif message.served and message.version > context.version:
        context.version = context.client.download(message.version)
