"""What a coordinator leaves word of: where the job stands, as far as its workers do not know it themselves.

A record is made where a phase opens, where the steps of an epoch begin and where one is over, before any worker is told
of it. So a worker is never further than the newest record but by steps, of which it knows itself.
"""

from copy import deepcopy
from logging import DEBUG

import msgspec

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.checkpoint.manifest import Position
from polyrhythm.runtime.checkpoint.returned import JobState
from polyrhythm.runtime.checkpoint.snapshots import encoded
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Home, Ranks, Stand
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.recovery.resumption import Resumption, left_of
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


class HoldersRecord(msgspec.Struct, frozen=True):
    """Who has the newest state; see `StateHolders`. Of `unsynchronised` positions, who has seen them."""

    home: Home
    contributors: Ranks
    holders: Ranks
    others: Ranks
    unsynchronised: tuple[tuple[Ranks, tuple[SampleRange, ...]], ...]


class JobRecord(msgspec.Struct, frozen=True):
    """Where a job stands.

    `policy` is the one in force, which began the phase in `state`; `chosen` is what was chosen for the whole job, and
    `supervised` its state, if it chooses others. The steps of an epoch began for the `run`-th time in this phase.
    Replicas had met in the first `merges` exchanges.
    Numbers that came with it have `shape`, and are those of the servers.
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
    rolled_back: int = 0
    repeated: int = 0
    merges: int = 0
    shape: StateShape | None = None


def record_of(coordinator: Coordinator, config: JobConfig, stand: Stand, started_s: float) -> JobRecord:
    """Where the job stands; what is handed out counts as if it had been given back."""
    job, entry, learned = coordinator.job, coordinator.entry, learned_of(coordinator)
    return JobRecord(
        config=config,
        stand=stand,
        started_s=started_s,
        phase=coordinator.phase,
        run=coordinator.run,
        policy=coordinator.policy.spec,
        state=learned["state"],
        chosen=learned["chosen"],
        supervised=learned["supervised"],
        position=position_of(coordinator),
        members={
            rank: MemberRecord(member.ready, member.out)
            for rank, member in job.members.items()
            if member.ready is not None and member.ready.epoch == job.epoch
        },
        phase_members=coordinator._phase_members,
        awaited=tuple(job.awaited),
        holders=holders_of(coordinator),
        entry=None if entry is None else EntryRecord(tuple(entry.awaited), entry.source, entry.goes_back),
        rolled_back=job.rolled_back_samples,
        repeated=job.repeated_samples,
        merges=coordinator._mode.merges,
    )


def learned_of(coordinator: Coordinator) -> dict[str, str]:
    """What policies have learned, as far as it can be kept, and which one was chosen."""
    policy, choice = coordinator.policy.spec, coordinator.choice
    return {
        "state": encoded(policy, coordinator._mode.resting, DEBUG),
        "chosen": choice.spec,
        "supervised": encoded(choice.spec, choice.stages.known, DEBUG),
    }


def state_of(coordinator: Coordinator) -> JobState:
    """For a script's own checkpoint within an epoch."""
    learned, on_servers = learned_of(coordinator), coordinator._state.home == "servers" and coordinator.entry is None
    left = left_of(position_of(coordinator).workload) if on_servers else ()
    resumption = Resumption(left, coordinator.policy.spec, learned["state"], learned["chosen"], learned["supervised"])
    return JobState(resumption, coordinator.job.version if on_servers else None)


def position_of(coordinator: Coordinator) -> Position:
    position, outstanding = coordinator.job.position, coordinator._mode.outstanding
    if not outstanding:
        return position
    workload = deepcopy(coordinator.job.workload)
    for sample_range in outstanding:
        workload.give_back(sample_range)
    samples = position.samples - coordinator._mode.unsettled_samples
    return msgspec.structs.replace(position, workload=workload.state(), samples=samples)


def holders_of(coordinator: Coordinator) -> HoldersRecord:
    state = coordinator._state
    noted = tuple((tuple(sorted(ranks)), tuple(ranges)) for ranks, ranges in state.unsynchronised.noted)
    return HoldersRecord(state.home, state._contributors, state._holders, state._others, noted)
