"""What a coordinator leaves word of: where the job stands, as far as its workers do not know it themselves.

A record is made where a phase opens, where the steps of an epoch begin and where one is over, before any worker is told
of it. So a worker is never further than the newest record but by steps, of which it knows itself.
"""

import msgspec

from polyrhythm.runtime.checkpoint.manifest import Position
from polyrhythm.runtime.coordinator.job import Stand
from polyrhythm.runtime.coordinator.members.member import Offers, Ranks
from polyrhythm.runtime.coordinator.rollback import RollbackRecord
from polyrhythm.runtime.coordinator.state_holders import HoldersRecord
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.shard_protocol import StateShape


class MemberRecord(msgspec.Struct, frozen=True):
    """A worker that stands in the epoch; one that is `out` is at its end already."""

    ready: Ready
    out: bool


class EntryRecord(msgspec.Struct, frozen=True):
    """Who is on the way into a phase; see `PhaseEntry`."""

    members: Ranks
    source: int | None
    goes_back: bool


class JobRecord(msgspec.Struct, frozen=True):
    """Where a job stands.

    `policy` is the one in force, which began the phase in `state`; `chosen` is what was chosen for the whole job, and
    `supervised` its state, if it chooses others; `began` and `before` are as in `PolicyChoice`. The steps of an epoch
    began for the `run`-th time in this phase. Members had put these `offers` into exchanges that they had been asked
    for. Numbers that came with it have `shape`, and are those of the servers.
    On another host the members that are `gone` will not come back, and the job goes on if at least half of all hosts
    are heard; of the others than the first, the `hosts` are given by their members. In a record that is `guarded` a
    standby knows of it, too, and may take over.
    """

    config: JobConfig
    stand: Stand
    started_s: float
    phase: int
    run: int
    policy: str
    state: str
    chosen: str
    supervised: str
    position: Position
    members: dict[int, MemberRecord]
    phase_members: Ranks
    awaited: Ranks
    holders: HoldersRecord
    entry: EntryRecord | None
    rollback: RollbackRecord = RollbackRecord()
    rolled_back: int = 0
    repeated: int = 0
    offers: Offers = {}
    shape: StateShape | None = None
    gone: Ranks = ()
    hosts: tuple[Ranks, ...] = ()
    guarded: bool = False
    began: str = ""
    before: str = ""
