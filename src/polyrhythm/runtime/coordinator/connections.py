"""Handlers of the connections to a coordinator, those of workers and of whoever steers the job; and the store at which
groups of workers meet.
"""

import logging
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import LeftReason
from polyrhythm.errors import FrameError, PolyrhythmError, UsageError
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.monitor import JobMonitor
from polyrhythm.runtime.coordinator.pushes import PushMatcher
from polyrhythm.runtime.coordinator.stages import SwitchAnswer
from polyrhythm.runtime.server.shard_group import ShardGroup
from polyrhythm.runtime.wire.connection import Channel, parse_address
from polyrhythm.runtime.wire.control_protocol import Absent, AskStatus, DrainWorker, EndJob, RemoveWorker, Status
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.protocol import Pushed, SwitchTo, ToCoordinator
from polyrhythm.runtime.wire.shard_protocol import FOR_SHARD, Rejected, Upload

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class Host(Protocol):
    """What a connection's handler needs from the coordinator."""

    coordinator: Coordinator
    monitor: JobMonitor
    pushes: PushMatcher
    shards: ShardGroup

    def hear(self, worker: int, message: ToCoordinator) -> None:
        """A worker says something to the coordinator."""

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A worker's connection has ended."""

    def absent(self, worker: int) -> None:
        """A rank will not come."""

    def switch(self, spec: str, tell: SwitchAnswer, by: str = "") -> None:
        """Somebody wants another policy; `tell` hears why it is refused, or nothing."""

    def remove(self, worker: int, by: str) -> None:
        """Somebody wants the others to go on without a worker."""

    def drain(self, worker: int, by: str) -> None:
        """Somebody wants a worker to leave when its step is complete."""

    def end(self, by: str) -> None:
        """Somebody wants the job to end."""

    def status(self, after: int = 0) -> Status: ...


class WorkerAcceptor:
    """Handler of a worker's connection. One that sends what cannot be is told why, and is gone for the job."""

    def __init__(self, coordinator: Host, worker: int, channel: Channel) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._channel = channel

    def received(self, message: Any) -> None:
        try:
            self._sort(message)
        except PolyrhythmError as error:
            self._refuse(error)
            raise

    def _sort(self, message: Any) -> None:
        """Some is for the shard beside the coordinator, a push for both, and all else for the coordinator."""
        host, worker = self._coordinator, self._worker
        if type(message) in FOR_SHARD:
            if isinstance(message, Upload):
                host.coordinator.check_upload(worker, message.version)
            host.shards.service.received(worker, self._channel, message)
            return
        host.monitor.heard(worker, message)
        if isinstance(message, Pushed):
            host.shards.service.check_settings(worker, message.settings)
            host.pushes.told(worker, message)
        else:
            host.hear(worker, message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        try:
            return self._coordinator.shards.service.destination(self._worker, message, payload)
        except PolyrhythmError as error:
            self._refuse(error)
            raise

    def _refuse(self, error: PolyrhythmError) -> None:
        log.warning("%s; it is out of the job", error)
        self._channel.send(Rejected(str(error)))

    def lost(self, reason: str) -> None:
        # End of file is a death; one that has said goodbye is not known to the coordinator any more.
        log.debug("rank %d: %s", self._worker, reason)
        self._coordinator.lost(self._worker, "died")


class ControlAcceptor:
    """Handler of a connection from outside the job, such as that of ``polyrhythm ctl``."""

    def __init__(self, coordinator: Host, channel: Channel) -> None:
        self._coordinator = coordinator
        self._channel = channel
        self._gone = False

    def received(self, message: Any) -> None:
        """Steer or ask; the answer is the status, or why a policy is refused once all workers have been asked."""
        try:
            if isinstance(message, SwitchTo):
                self._coordinator.switch(message.policy, self._tell, message.by)
            else:
                self._steer(message)
                self._channel.send(self._coordinator.status(message.after if isinstance(message, AskStatus) else 0))
        except UsageError as error:
            self._channel.send(Rejected(str(error)))

    def _steer(self, message: Any) -> None:
        match message:
            case RemoveWorker():
                self._coordinator.remove(message.rank, message.by)
            case DrainWorker():
                self._coordinator.drain(message.rank, message.by)
            case EndJob():
                self._coordinator.end(message.by)
            case Absent():
                self._coordinator.absent(message.rank)
            case AskStatus():
                pass
            case _:
                raise FrameError(f"a controller sent {type(message).__name__}")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"a controller announced {payload.nbytes} bytes")

    def _tell(self, refusal: str) -> None:
        if not self._gone:
            self._channel.send(Rejected(refusal) if refusal else self._coordinator.status())

    def lost(self, reason: str) -> None:
        """It may come and go."""


def require(worker: int, ranks: Iterable[int]) -> None:
    """One of these is meant.

    Raises:
        UsageError: if it is none of them.
    """
    if worker not in (there := sorted(ranks)):
        raise UsageError(f"rank {worker} is not in this job; its ranks are {there}")


def open_store(addresses: Sequence[str]) -> TCPStore:
    """Where workers meet. It asks nobody who he is, so it listens where the job does, and nothing in it is secret.

    Args:
        addresses: where workers of other hosts reach the coordinator.
    """
    hosts = {parse_address(address)[1][0] for address in addresses} or {LOOPBACK}
    host = hosts.pop() if len(hosts) == 1 else "0.0.0.0"
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    own = LOOPBACK if host == "0.0.0.0" else host
    return TCPStore(own, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
