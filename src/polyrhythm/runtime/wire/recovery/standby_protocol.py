"""What the coordinator of the first host and its standby on another one say to each other.

The standby gets every record with its numbers, in pieces, each of which it confirms; so a slow link never hides a
`Ping`. It answers pings, which is a promise: see `polyrhythm.runtime.wire.recovery.permission`.
"""

from typing import TypeAlias

from polyrhythm.runtime.wire.protocol import ControlMessage, Natural
from polyrhythm.runtime.wire.shard_protocol import Rejected, Welcome


class Ping(ControlMessage):
    """The coordinator is alive, and so many samples of the job are made."""

    number: Natural
    samples: Natural = 0


class Pong(ControlMessage):
    """The answer: the standby has not taken over, and will not before so long after it got this ping."""

    number: Natural


class RecordBytes(ControlMessage):
    """Bytes of a part of the next record, as the payload, from position `at` of `whole`."""

    part: Natural
    at: Natural
    whole: Natural


class GotBytes(ControlMessage):
    """It is there; the next one may come."""


class KeepRecord(ControlMessage):
    """The record of this number, the numbers of whose parts came before, or are those of the record before it.

    Of the parts but the first, the `shapes`. The job is `elapsed_s` old, and its coordinators have died so often.
    Ranks that are `here` are on the coordinator's own host; `hosts` are those of the others, host by host.
    """

    number: Natural
    record: bytes
    shapes: tuple[bytes, ...]
    same_numbers: bool
    elapsed_s: float
    deaths: Natural
    here: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]


class KeptRecord(ControlMessage):
    """The standby has the record of this number."""

    number: Natural


class TookOver(ControlMessage):
    """The standby has taken the coordinator's place, which must not go on."""


class JobOver(ControlMessage):
    """The job has ended, and nobody need take over."""


ToStandby: TypeAlias = Welcome | Rejected | Ping | RecordBytes | KeepRecord | JobOver
FromStandby: TypeAlias = Pong | GotBytes | KeptRecord | TookOver
