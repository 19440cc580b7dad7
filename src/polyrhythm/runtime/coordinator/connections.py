"""Handlers of the connections to a coordinator: those of workers, of their heartbeat, and of whoever steers the job."""

import logging
from typing import Any, Protocol

from polyrhythm.core import LeftReason, Policy
from polyrhythm.errors import FrameError, PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.protocol import Absent, AskStatus, Heartbeat, Status, SwitchTo
from polyrhythm.runtime.wire.shard_protocol import Rejected

log = logging.getLogger(__name__)


class Host(Protocol):
    """What a connection's handler needs from the coordinator."""

    shards: ShardGroup

    def received(self, worker: int, message: Any) -> None: ...

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A worker's connection has ended."""

    def absent(self, worker: int) -> None:
        """A rank will not come."""

    def heartbeat(self, worker: int) -> None: ...

    def switch(self, policy: Policy[Any]) -> None:
        """Somebody wants another policy."""

    def status(self) -> Status: ...


class WorkerAcceptor:
    def __init__(self, coordinator: Host, worker: int) -> None:
        self._coordinator = coordinator
        self._worker = worker

    def received(self, message: Any) -> None:
        self._coordinator.received(self._worker, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        return self._coordinator.shards.service.destination(self._worker, message, payload)

    def lost(self, reason: str) -> None:
        # End of file is a death; one that has said goodbye is not known to the coordinator any more.
        log.debug("rank %d: %s", self._worker, reason)
        self._coordinator.lost(self._worker, "died")


class HeartbeatAcceptor:
    """Handler of a worker's second connection, on which it only shows that it runs."""

    def __init__(self, coordinator: Host, worker: int) -> None:
        self._coordinator = coordinator
        self._worker = worker

    def received(self, message: Any) -> None:
        if not isinstance(message, Heartbeat):
            raise FrameError(f"the heartbeat of rank {self._worker} sent {type(message).__name__}")
        self._coordinator.heartbeat(self._worker)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the heartbeat of rank {self._worker} announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """The worker's own connection tells of its end."""


class ControlAcceptor:
    """Handler of a connection from outside the job, such as that of ``polyrhythm ctl``."""

    def __init__(self, coordinator: Host, channel: Channel) -> None:
        self._coordinator = coordinator
        self._channel = channel

    def received(self, message: Any) -> None:
        """Steer or ask; the answer is always the status."""
        if isinstance(message, SwitchTo):
            try:
                self._coordinator.switch(parse_policy(message.policy))
            except PolyrhythmError as error:
                self._channel.send(Rejected(str(error)))
                return
        elif isinstance(message, Absent):
            self._coordinator.absent(message.rank)
        elif not isinstance(message, AskStatus):
            raise FrameError(f"a controller sent {type(message).__name__}")
        self._channel.send(self._coordinator.status())

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"a controller announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """It may come and go."""
