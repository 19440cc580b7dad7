"""The coordinator's side of its standby: what it gives it to keep, and how long it may go on without it."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from polyrhythm.errors import FrameError
from polyrhythm.runtime.coordinator.heartbeats import Heartbeats
from polyrhythm.runtime.coordinator.members.member import Ranks
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.recovery.memory import Kept, RecoveryMemory
from polyrhythm.runtime.wire.recovery.permission import Permission, first_goes_on
from polyrhythm.runtime.wire.recovery.standby_protocol import (
    GotBytes,
    JobOver,
    KeepRecord,
    KeptRecord,
    Ping,
    Pong,
    RecordBytes,
    TookOver,
)

log = logging.getLogger(__name__)

LAST_S = 5.0
"""How long it may take to hear that the job is over."""

PIECE = 4 * 2**20
"""Bytes that are under way at a time."""


Hosts: TypeAlias = tuple[Ranks, ...]
"""The ranks of each host."""


class GuardedJob(Protocol):
    """What a standby would take over; see `CoordinatorServer`."""

    loop: Loop
    config: JobConfig
    heartbeats: Heartbeats
    channels: dict[int, Channel]

    def elapsed(self) -> float:
        """Seconds since the job's clock was 0."""

    def give_up(self, reason: str) -> None:
        """The job ends for everyone here."""


class StandbyLink:
    """Handler of the standby's connection.

    Without one it is awaited: the coordinator before this one had a standby, which may be about to take over.

    Args:
        channel: the connection, if there is one.
        job: whose coordinator this process is.
        memory: where its records are.
        kept: told when the standby has the record that it was given last, or will have none any more.
        hosts: of the others than this one, the ranks, as far as the standby knows.

    Attributes:
        gone: whether it gets no records.
        ended: whether it will surely not take over, but after it has come back.
    """

    def __init__(
        self,
        channel: Channel | None,
        job: GuardedJob,
        memory: RecoveryMemory,
        kept: Callable[[], None],
        hosts: Hosts = (),
    ) -> None:
        self._channel, self._job, self._memory, self._kept = channel, job, memory, kept
        self._permission = Permission(job.config.hang_after, job.loop.clock())
        self._pieces: deque[tuple[RecordBytes, memoryview]] = deque()
        self._record: KeepRecord | None = None
        self._sent: list[bytearray] = []
        self.hosts = hosts
        self.gone = self.ended = False
        self._alone_until_s = 0.0
        job.loop.call_later(0.0, self._tick)  # it is to be welcome first

    def replicate(self, number: int, parts: int) -> None:
        """Give it the record of this number, which has so many further parts."""
        kept = [self._memory.read_part(part, number) for part in range(parts + 1)]
        numbers = [each.numbers for each in kept]
        same = any(map(len, numbers)) and numbers == self._sent
        here, others = ranks_by_host(self._job.channels)
        self._record = KeepRecord(
            number,
            kept[0].record,
            tuple(each.record for each in kept[1:]),
            same,
            self._job.elapsed(),
            self._memory.deaths,
            here,
            others,
        )
        self._pieces.extend(() if same else (each for part in range(parts + 1) for each in pieces(part, kept[part])))
        self._sent = numbers if any(map(len, numbers)) else self._sent
        self._send_next()

    def drop(self) -> bool:
        """Another connection takes its place; whether a record was on its way."""
        pending, self._record = self._record is not None, None
        self.gone = self.ended = True
        self._close()
        return pending

    def end(self) -> None:
        """The job is over; the standby ends the connection when it has heard of it."""
        channel, self.ended = self._channel, True
        self._leave()
        if channel is not None:
            channel.send(JobOver())
            self._job.loop.run_until(lambda: channel.closed, LAST_S)

    # -- what the channel tells (see `ConnectionHandler`) --------------------------------------------------------------

    def received(self, message: Any) -> None:
        match message:
            case Pong(number=number):
                self._permission.answered(number)
                if self.gone:  # it has not taken over: it is to come back, and get the records again
                    self._alone_until_s = self._job.loop.clock() + 3 * self._job.config.hang_after
                    self._close()
            case GotBytes():
                self._send_next()
            case KeptRecord(number=number) if self._record is not None and number == self._record.number:
                self.hosts, self._record = self._record.hosts, None
                self._kept()
            case TookOver():
                if not self.gone:  # else it hears too few of the hosts
                    self._yield("this host was not heard of any more")
            case _:
                raise FrameError(f"the standby sent {type(message).__name__}")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the standby announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """Its process has ended, unless it is cut off: then it may take over."""
        if not self.gone and not (self._channel is not None and self._channel.cut):
            standby = self._job.config.standby
            log.warning("the standby on %s is gone: %s; until it is back, the job ends with this host", standby, reason)
            self.ended = True
            self._leave()

    # -- details -------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _send_next(self) -> None:
        channel = self._channel
        if channel is None or self.gone or self._record is None:
            return
        if not self._pieces:
            channel.send(self._record)
            return
        piece, data = self._pieces.popleft()
        channel.send(piece, data, Payload("uint8", len(data)))

    def _tick(self) -> None:
        loop = self._job.loop
        if self.ended:
            return
        if self._permission.is_over(loop.clock()):
            self._decide()
        elif self._channel is not None:
            self._channel.send(Ping(self._permission.ping(loop.clock()), self._memory.samples))
        loop.call_later(self._job.config.heartbeat_s, self._tick)

    def _decide(self) -> None:
        """The standby may take over, unless this host hears most of the hosts; until it has surely given that up."""
        config, now_s = self._job.config, self._job.loop.clock()
        silent = f"the standby on {config.standby} has not answered for {config.hang_after:g} s"
        known = [self.hosts] if self._record is None else [self.hosts, self._record.hosts]
        if not all(first_goes_on(len(hosts) + 1, 1 + sum(map(self._hears, hosts))) for hosts in known):
            self._yield(f"{silent}, nor have most of the hosts")
        elif not self.gone:
            log.warning("%s; the job goes on without it", silent)
            self._alone_until_s = now_s + 2 * config.hang_after
            self.hosts = max(known, key=len)
            self._leave()
        elif now_s > self._alone_until_s:
            self.ended = True
            self._close()

    def _hears(self, ranks: tuple[int, ...]) -> bool:
        """Whether something was heard of a host, long after the standby has fallen silent."""
        job = self._job
        there = (rank for rank in ranks if rank in job.channels and rank in job.heartbeats)
        return any(job.heartbeats.silent_s(rank) < job.config.hang_after / 2 for rank in there)

    def _yield(self, why: str) -> None:
        """What workers are still to be told is for those of the standby only."""
        self.ended = self.gone = True
        self._record = None
        self._job.give_up(f"{why}; the job goes on with its standby on {self._job.config.standby}, and ends here")

    def _leave(self) -> None:
        self.gone, pending, self._record = True, self._record is not None, None
        if pending:
            self._kept()


def ranks_by_host(channels: Mapping[int, Channel]) -> tuple[Ranks, Hosts]:
    """Of the workers on this host, and on each of the others."""
    hosts: dict[str, list[int]] = {}
    for rank, channel in sorted(channels.items()):
        with suppress(OSError):  # it is gone, which is about to be noticed
            hosts.setdefault("" if channel.local else channel.socket.getpeername()[0], []).append(rank)
    here = hosts.pop("", [])
    return tuple(here), tuple(map(tuple, hosts.values()))


def pieces(part: int, kept: Kept) -> list[tuple[RecordBytes, memoryview]]:
    """What travels of the numbers of a part."""
    numbers = memoryview(kept.numbers)
    starts = range(0, len(numbers), PIECE)
    return [(RecordBytes(part, start, len(numbers)), numbers[start : start + PIECE]) for start in starts]
