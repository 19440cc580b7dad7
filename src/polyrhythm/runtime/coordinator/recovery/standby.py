"""The standby of a coordinator on another host: it keeps what it gets, and takes over when that host is lost."""

import logging
import time
from typing import Any

import msgspec

from polyrhythm.errors import FrameError, PolyrhythmError, UnreachableError
from polyrhythm.runtime.coordinator.recovery.record import JobRecord
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.standby_protocol import (
    GotBytes,
    JobOver,
    KeepRecord,
    KeptRecord,
    Ping,
    Pong,
    RecordBytes,
    TookOver,
    ToStandby,
)
from polyrhythm.runtime.wire.shard_protocol import Hello

log = logging.getLogger(__name__)

AGAIN_S = 0.05
"""Pause between two attempts to reach a coordinator, of which another one may be about to follow."""

DECODER = msgspec.msgpack.Decoder(JobRecord)
ENCODER = msgspec.msgpack.Encoder()

MOST_BYTES = 2**40
"""Of a part."""


class Standby:
    """Follows a coordinator until its job is over, or its host is lost.

    Args:
        config: of the job, as this host's launcher knows it.
        first: the coordinator.
        memory: of this process.
    """

    def __init__(self, config: JobConfig, first: Address, memory: RecoveryMemory) -> None:
        self._config, self._first, self._memory = config, first, memory
        self._loop = Loop(spin_s=0.0)
        self._channel: Channel | None = None
        self._early: list[Any] = []
        self._parts: dict[int, bytearray] = {}
        """Numbers of the record that is on its way, by part, and of the one before it."""
        self._numbers: dict[int, bytearray] = {}
        self._newest: tuple[KeepRecord, float] | None = None
        self._samples = 0
        self._heard_s = self._loop.clock()
        self._over = self._met = False
        self._looked_s = self._heard_s

    def follow(self) -> bool:
        """Wait; whether this process is to take the coordinator's place."""
        while not self._over:
            self._forget_if_stopped()
            if self._channel is None and not self._meet():
                return self._take_over("is lost, and its coordinator with it", by_silence=False)
            if self._is_silent:
                return self._take_over(f"has not been heard of for {self._config.hang_after:g} s", by_silence=True)
            self._loop.step(self._config.heartbeat_s)
        return False

    # -- what the channel tells (see `ConnectionHandler`) --------------------------------------------------------------

    def received(self, message: Any) -> None:
        if self._channel is None:  # it came with the word that this process is welcome
            self._early.append(message)
            return
        self._heard_s = self._loop.clock()
        match message:
            case Ping(number=number, samples=samples):
                self._samples = samples
                self._channel.send(Pong(number))
            case RecordBytes():
                self._channel.send(GotBytes())
            case KeepRecord():
                self._keep(message)
                self._channel.send(KeptRecord(message.number))
            case JobOver():
                self._over = True
                self._channel.close()
            case _:
                raise FrameError(f"the coordinator sent its standby {type(message).__name__}")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if (
            not isinstance(message, RecordBytes)
            or message.at + payload.nbytes > message.whole
            or message.whole > MOST_BYTES
        ):
            raise FrameError(f"the coordinator announced {payload.nbytes} bytes to its standby")
        if message.at == 0:
            self._parts[message.part] = bytearray(message.whole)
        elif message.whole != len(self._parts.get(message.part, b"")):
            raise FrameError(f"the coordinator announced bytes {message.at} of what it had not begun")
        return memoryview(self._parts[message.part])[message.at : message.at + payload.nbytes]

    def lost(self, reason: str) -> None:
        """It has died, and another one follows, or its host is lost."""
        self._channel = None

    # -- details -------------------------------------------------------------------------------------------------------

    @property
    def _is_silent(self) -> bool:
        """With two periods more than the coordinator takes to notice it."""
        return self._met and self._loop.clock() > self._heard_s + self._config.hang_after + 2 * self._config.heartbeat_s

    def _forget_if_stopped(self) -> None:
        """The coordinator may have gone on without this process, and its newest record be an old one."""
        now_s = self._loop.clock()
        if now_s - self._looked_s > self._config.hang_after / 2:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._newest = None
            self._heard_s = now_s  # it was this process that heard nothing
        self._looked_s = now_s

    def _meet(self) -> bool:
        """Be there for the coordinator; False if there is none any more, and nobody who would start another one."""
        hello = Hello(self._first.job, "standby", 0)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToStandby)
        while not self._is_silent:
            try:
                where, patience_s = self._first.coordinator, self._config.hang_after
                self._channel = join(self._loop, where, hello, decoder, self, patience_s, token=self._first.token)
            except UnreachableError as error:
                # It was there when this process was started, and its launcher's socket outlives it.
                if isinstance(error.__cause__, ConnectionRefusedError):
                    return False
            except PolyrhythmError as error:
                if not self._met:
                    log.error("%s", error)  # noqa: TRY400 (one line for the user)
                    self._over = True
                    return True
            else:
                if not self._met:
                    log.info("this host is the standby: if %s is lost, the job goes on here", where)
                self._met, self._heard_s, self._parts = True, self._loop.clock(), {}
                early, self._early = self._early, []
                for message in early:
                    self.received(message)
                return True
            time.sleep(AGAIN_S)
        return True

    def _keep(self, message: KeepRecord) -> None:
        """Numbers stay, as the next record may have the same."""
        if self._parts:
            self._numbers, self._parts = self._parts, {}
        self._newest = message, time.monotonic() - message.elapsed_s

    def _take_over(self, why: str, by_silence: bool) -> bool:
        host = self._first.coordinator.partition(":")[2].rpartition(":")[0]
        if self._channel is not None:
            self._channel.send(TookOver())
        if self._newest is None:
            log.error("host %s %s, and this one has nothing to go on from; the job ends", host, why)
            return False
        deaths, most = self._newest[0].deaths + 1, self._config.max_coordinator_restarts
        if deaths > most:
            log.error("host %s %s; coordinators were started again %d times before, and the job ends", host, why, most)
            return False
        log.warning("host %s %s; the coordinator is started again here (%d of %d)", host, why, deaths, most)
        self._write(*self._newest, by_silence)
        self._memory.take_over(self._samples, deaths - 1)
        return True

    def _write(self, message: KeepRecord, started_s: float, by_silence: bool) -> None:
        """What the next coordinator finds; where the first may be alive, its host's workers follow it and not this."""
        record = DECODER.decode(message.record)
        own = msgspec.structs.replace(
            record, started_s=started_s, gone=message.here, hosts=message.hosts if by_silence else (), guarded=False
        )
        first, *others = [self._numbers.get(part, bytearray()) for part in range(len(message.shapes) + 1)]
        kept = [memoryview(first)] if record.shape is not None else []
        number = self._memory.write(ENCODER.encode(own), kept, len(others))
        for part, (shape, numbers) in enumerate(zip(message.shapes, others, strict=True), start=1):
            self._memory.write_part(part, number, shape, [memoryview(numbers)])
