"""Whoever steers a job from outside, such as ``polyrhythm ctl``, and the store at which groups of workers meet."""

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from polyrhythm.core import LeftReason
from polyrhythm.errors import FrameError, UsageError
from polyrhythm.lines import first_to_say
from polyrhythm.runtime.checkpoint.service import JobCheckpoints
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.heartbeats import Heartbeats
from polyrhythm.runtime.coordinator.members.proposal import read_policy
from polyrhythm.runtime.coordinator.monitor import JobMonitor, job_status
from polyrhythm.runtime.coordinator.recorder import JobRecorder
from polyrhythm.runtime.wire.connection import Channel, parse_address
from polyrhythm.runtime.wire.control_protocol import (
    Absent,
    AskStatus,
    DrainWorker,
    EndJob,
    RemoveWorker,
    Status,
    TakeCheckpoint,
)
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import SwitchTo
from polyrhythm.runtime.wire.recovery.removed import tell_removed
from polyrhythm.runtime.wire.shard_protocol import Broken, Rejected

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

FIRST_LOOK_S = 4.0
"""How long the process that follows the job may take to come up; the launcher waits a little longer."""


class Steered(Protocol):
    """What is steered; see `CoordinatorServer`."""

    config: JobConfig
    loop: Loop
    monitor: JobMonitor
    recorder: JobRecorder
    channels: dict[int, Channel]
    heartbeats: Heartbeats
    checkpoints: JobCheckpoints

    @property
    def coordinator(self) -> Coordinator:
        """Of the job."""

    def act(self, act: Callable[..., None], *given: Any) -> None:
        """Have the coordinator act."""

    def absent(self, worker: int, said: bool) -> None:
        """A rank will not come; whether it has said why."""

    def remove(self, worker: int, why: str, reason: LeftReason) -> None:
        """The others go on without a worker."""

    def give_up(self, reason: str) -> None:
        """The job ends for everyone."""


class Controllers:
    """Those who are connected from outside the job."""

    def __init__(self, job: Steered) -> None:
        self._job = job
        self._channels: list[Channel] = []
        self._asked = False
        """Whether anybody has asked how the job is."""

    def admit(self, channel: Channel) -> "ControlAcceptor":
        self._channels = [*(each for each in self._channels if not each.closed), channel]
        return ControlAcceptor(self._job, channel, self._look)

    def _look(self) -> None:
        self._asked = True

    def say_last(self, ended: str) -> None:
        """Whoever watches the job hears how it ended, or what has happened if it goes on with another coordinator.

        Of a short job, the process that is to follow it may be yet to come.
        """
        if ended:
            self._job.monitor.tell("end", ended)
        if self._job.config.watched:
            self._job.loop.run_until(lambda: self._asked, FIRST_LOOK_S)
        for channel in self._channels:
            channel.send(status_of(self._job, ended=ended))


class ControlAcceptor:
    """Handler of a connection from outside the job."""

    def __init__(self, job: Steered, channel: Channel, asked: Callable[[], None]) -> None:
        self._job, self._channel, self._looked = job, channel, asked

    def received(self, message: Any) -> None:
        """Steer or ask; the answer is the status, or why not: of a policy once all workers have been asked."""
        try:
            if isinstance(message, SwitchTo):
                self._switch(message)
            elif isinstance(message, TakeCheckpoint):
                self._asked("for a checkpoint", message.by)
                self._job.checkpoints.take(self._tell, message.last)
            else:
                self._steer(message)
                self._channel.send(status_of(self._job, message.after if isinstance(message, AskStatus) else 0))
        except UsageError as error:
            self._channel.send(Rejected(str(error)))

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"a controller announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """It may come and go."""

    def _steer(self, message: Any) -> None:
        match message:
            case RemoveWorker():
                self._remove(message)
            case DrainWorker():
                self._drain(message)
            case EndJob():
                self._asked("to end the job", message.by)
                self._job.give_up(f"job {self._job.config.job} was ended by {message.by or 'a controller'}")
            case Absent():
                self._job.absent(message.rank, message.said)
            case AskStatus():
                self._looked()
            case _:
                raise FrameError(f"a controller sent {type(message).__name__}")

    def _switch(self, message: SwitchTo) -> None:
        policy = read_policy(message.policy, files=self._job.coordinator.job.runs_policy_files)
        self._asked(f"to switch to {policy.spec}", message.by)
        self._job.act(self._job.coordinator.choice.propose, policy, self._tell)

    def _tell(self, refusal: str) -> None:
        self._channel.send(Rejected(refusal) if refusal else status_of(self._job))

    def _remove(self, message: RemoveWorker) -> None:
        worker, by = message.rank, message.by
        require(worker, self._job.channels)
        self._asked(f"to remove rank {worker}", by)
        tell_removed(worker)
        self._job.remove(worker, f"rank {worker} was removed by {by or 'a controller'}", "died")

    def _drain(self, message: DrainWorker) -> None:
        """A worker is to finish its step and leave."""
        worker, job = message.rank, self._job
        require(worker, job.channels)
        if worker not in job.heartbeats:
            raise UsageError(f"rank {worker} is just joining; ask again in a second")
        self._asked(f"to drain rank {worker}", message.by)
        job.monitor.leaving.add(worker)
        job.heartbeats.ask_to_leave(worker)

    def _asked(self, what: str, by: str) -> None:
        if by:
            log.info("%s asks %s", by, what)
            self._job.monitor.tell("control", f"{by} asks {what}")


def status_of(job: Steered, after: int = 0, ended: str = "") -> Status:
    """How the job is, with its events after that of number `after`."""
    job.recorder.catch_up()
    stragglers = job.recorder.stragglers
    silent_s = {rank: job.heartbeats.silent_s(rank) for rank in sorted(job.channels)}
    workers = job.monitor.workers(job.coordinator.job, stragglers, silent_s)
    return job_status(job.config, job.coordinator, stragglers, job.monitor, workers, after, ended)


def require(worker: int, ranks: Iterable[int]) -> None:
    """One of these is meant.

    Raises:
        UsageError: if it is none of them.
    """
    if worker not in (there := sorted(ranks)):
        who = f"its ranks are {there}" if there else "no rank has joined it yet"
        raise UsageError(f"rank {worker} is not in this job; {who}")


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


def end_unbegun(job: Steered, why: str) -> None:
    """Somebody could not be let in. A job that waits for its workers may wait for them; one that has them goes on."""
    if job.coordinator.job.epoch < 0:
        job.give_up(why)


class LastWord:
    """What ends a job for everyone. It is said once, and those hear the same for whom it ends for another reason."""

    def __init__(self) -> None:
        self._said: Broken | Rejected | None = None

    def say(self, message: Broken | Rejected, channels: Iterable[Channel]) -> str:
        """Say it, if nothing was said, and tell these; why the job ends."""
        if self._said is None:
            self._said = message
            log_end(message.reason)
        for channel in channels:
            channel.send(self._said)
        return self._said.reason


def log_end(reason: str) -> None:
    """Why the job ends for everyone: workers of this host need not say it again."""
    first_to_say(reason)
    log.error("%s", reason)
