"""Handlers of the workers' connections to a coordinator."""

import logging
from typing import Any, Protocol

from polyrhythm.core import LeftReason
from polyrhythm.errors import PolyrhythmError
from polyrhythm.lines import reason_of
from polyrhythm.runtime.checkpoint.returned import AskState, Returned
from polyrhythm.runtime.coordinator.checks import check_upload
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.protocol import ToCoordinator
from polyrhythm.runtime.wire.shard_protocol import FOR_SHARD, Rejected, Upload

log = logging.getLogger(__name__)


class ServingJob(Protocol):
    """What such a handler needs; see `CoordinatorServer`."""

    shards: ShardGroup

    @property
    def coordinator(self) -> Coordinator:
        """Of the job."""

    def record(self, seen: int, what: Any) -> None:
        """A worker is heard."""

    def hear(self, worker: int, message: ToCoordinator | AskState | Returned) -> None:
        """A worker says something to the coordinator."""

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A worker's connection has ended."""


class WorkerAcceptor:
    """Handler of a worker's connection. One that sends what cannot be is told why, and is gone for the job."""

    def __init__(self, server: ServingJob, worker: int, channel: Channel) -> None:
        self._server = server
        self._worker = worker
        self._channel = channel

    def received(self, message: Any) -> None:
        try:
            self._sort(message)
        except (PolyrhythmError, OSError) as error:
            self._refuse(error)
            raise

    def _sort(self, message: Any) -> None:
        """Some is for the shard that is here, a push for both, and all else for the coordinator."""
        server, worker = self._server, self._worker
        if type(message) in FOR_SHARD:
            if isinstance(message, Upload):
                check_upload(worker, message.version, server.coordinator.job, server.coordinator.entry)
            server.shards.service.received(worker, self._channel, message)
            return
        server.record(worker, message)
        server.hear(worker, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        try:
            return self._server.shards.service.destination(self._worker, message, payload)
        except (PolyrhythmError, OSError) as error:
            self._refuse(error)
            raise

    def _refuse(self, error: PolyrhythmError | OSError) -> None:
        why = f"rank {self._worker} cannot be served: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        log.warning("%s; it is out of the job", why)
        self._channel.send(Rejected(why))

    def lost(self, reason: str) -> None:
        # End of file is a death; one that has said goodbye is not known to the coordinator any more.
        log.debug("rank %d: %s", self._worker, reason)
        self._server.lost(self._worker, "died")
