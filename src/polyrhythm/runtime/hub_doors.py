"""Handlers of the connections to a hub: those of workers, of their pulses, and of whoever steers the job."""

import logging
from typing import Any, Protocol

from polyrhythm.core import LeftReason, Policy
from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse
from polyrhythm.runtime.channel import Channel
from polyrhythm.runtime.control import Absent, AskStatus, Pulse, Status, SwitchTo
from polyrhythm.runtime.frames import FrameError, Payload
from polyrhythm.runtime.messages import Rejected
from polyrhythm.runtime.shards import ShardGroup

log = logging.getLogger(__name__)


class Host(Protocol):
    """What a connection's handler needs from the hub."""

    shards: ShardGroup

    def received(self, worker: int, message: Any) -> None:
        """A worker's message."""

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A worker's connection has ended."""

    def absent(self, worker: int) -> None:
        """A rank will not come."""

    def beat(self, worker: int) -> None:
        """A worker's process is running."""

    def switch(self, policy: Policy[Any]) -> None:
        """Somebody wants another policy."""

    def status(self) -> Status:
        """How the job is."""


class WorkerDoor:
    """Handler of a worker's connection."""

    def __init__(self, hub: Host, worker: int) -> None:
        self._hub = hub
        self._worker = worker

    def received(self, message: Any) -> None:
        """Everything goes to the hub."""
        self._hub.received(self._worker, message)

    def place(self, message: Any, payload: Payload) -> memoryview:
        """Gradients and uploads go to shard 0."""
        return self._hub.shards.service.place(self._worker, message, payload)

    def lost(self, reason: str) -> None:
        """End of file is a death; one that has said goodbye is not known to the coordinator any more."""
        log.debug("rank %d: %s", self._worker, reason)
        self._hub.lost(self._worker, "died")


class PulseDoor:
    """Handler of a worker's second connection, on which it only shows that it runs."""

    def __init__(self, hub: Host, worker: int) -> None:
        self._hub = hub
        self._worker = worker

    def received(self, message: Any) -> None:
        """A beat."""
        if not isinstance(message, Pulse):
            raise FrameError(f"the pulse of rank {self._worker} sent {type(message).__name__}")
        self._hub.beat(self._worker)

    def place(self, message: Any, payload: Payload) -> memoryview:
        """A pulse has no numbers."""
        raise FrameError(f"the pulse of rank {self._worker} announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """The worker's own connection tells of its end."""


class ControlDoor:
    """Handler of a connection from outside the job, such as that of ``polyrhythm ctl``."""

    def __init__(self, hub: Host, channel: Channel) -> None:
        self._hub = hub
        self._channel = channel

    def received(self, message: Any) -> None:
        """Steer or ask; the answer is always the status."""
        if isinstance(message, SwitchTo):
            try:
                self._hub.switch(parse(message.policy))
            except PolyrhythmError as error:
                self._channel.send(Rejected(str(error)))
                return
        elif isinstance(message, Absent):
            self._hub.absent(message.rank)
        elif not isinstance(message, AskStatus):
            raise FrameError(f"a controller sent {type(message).__name__}")
        self._channel.send(self._hub.status())

    def place(self, message: Any, payload: Payload) -> memoryview:
        """Controllers send no numbers."""
        raise FrameError(f"a controller announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """It may come and go."""
