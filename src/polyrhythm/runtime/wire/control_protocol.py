"""What somebody outside a job and its coordinator say to each other: how is it, change it, end it.

The answer to every question is a `Status`. `polyrhythm.runtime.launch.control_client` asks.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from polyrhythm.runtime.wire.protocol import MOST_SPEC, ControlMessage, Natural, SwitchTo
from polyrhythm.runtime.wire.shard_protocol import Rank
from polyrhythm.telemetry.stragglers import Lateness


class AskStatus(ControlMessage):
    """How is the job, and what has happened after event number `after`?"""

    after: Natural = 0


class Absent(ControlMessage):
    """The process of this rank has ended; if it never joined, nobody need wait for it. `said` says that it is known
    why.
    """

    rank: Rank
    said: bool = False


class RemoveWorker(ControlMessage):
    """End the process of this rank; the others go on. `by` says who asks."""

    rank: Rank
    by: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)] = ""


class DrainWorker(ControlMessage):
    """This rank finishes its step, hands its samples back and leaves; the others go on. `by` says who asks."""

    rank: Rank
    by: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)] = ""


class TakeCheckpoint(ControlMessage):
    """Take a checkpoint now; the answer comes when it is kept. `by` says who asks, `last` that those end after it."""

    by: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)] = ""
    last: bool = False


class EndJob(ControlMessage):
    """End the job for everyone. `by` says who asks."""

    by: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)] = ""


FINISHED = "finished"
"""How a job ends whose training is done."""

EventKind: TypeAlias = Literal[
    "start",
    "switch",
    "decision",
    "phase",
    "join",
    "left",
    "death",
    "straggler",
    "rollback",
    "divergence",
    "control",
    "end",
]
"""What can happen to a job; "phase" is a change of its members alone, "control" what somebody outside has asked for,
"decision" what a policy says that it has chosen, and why.
"""


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that has happened; numbers count from 1, without a gap."""

    number: int
    time_s: float
    kind: EventKind
    text: str
    rank: int | None = None


class WorkerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one connected worker is.

    `host` is empty for that of the coordinator. `reported_s` is when its latest step was complete, on the job's clock;
    `heard_s` how long ago there was a sign of it. `running` says that a step is under way, as far as the policy knows,
    and `leaving` that it was asked to leave. `sent` and `received` count the bytes of its tensors, as messages have
    them.
    """

    rank: int
    host: str = ""
    samples: int = 0
    reported_s: float | None = None
    heard_s: float = 0.0
    running: bool = False
    at_end: bool = False
    leaving: bool = False
    sent: float = 0.0
    received: float = 0.0


class Status(ControlMessage):
    """How the job is. `samples` counts what was processed, `skipped` what was not; `dropped` counts gradients.

    `time_s` is the job's clock, `epochs` what is planned if anybody has said it, `done` the samples of all epochs that
    the job is past. `loss` is the mean of the latest that workers have told; `figures` are those that the script
    reports, each the mean of the workers' latest. `staleness` counts the gradients that arrived, by the bits of their
    staleness (0, 1, 2 to 3, 4 to 7 and so on). Of `steps` on replicas, `local_steps` were followed by no exchange.
    `chosen` is the policy that somebody has chosen, if that chooses the one in force; `policy_fixed` says that
    somebody has named the job's policy, so that no default holds; `run` tells this run from others
    of its name. `notices` are the last lines about policies that were refused or taken out of force. `ended` says why
    there is no job any more.
    """

    policy: str
    phase: int
    epoch: int
    members: tuple[int, ...]
    samples: int
    skipped: int
    version: int
    applied: int
    dropped: dict[str, int]
    switching_to: str | None = None
    arrivals: dict[int, Lateness] = msgspec.field(default_factory=dict)
    job: str = ""
    time_s: float = 0.0
    planned: int = 0
    epochs: int | None = None
    dataset_samples: int = 0
    done: int = 0
    rolled_back: int = 0
    repeated: int = 0
    loss: float | None = None
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    staleness: tuple[int, ...] = ()
    staleness_sum: int = 0
    steps: int = 0
    local_steps: int = 0
    replicas: bool = False
    switches: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    events: tuple[JobEvent, ...] = ()
    notices: tuple[str, ...] = ()
    ended: str = ""
    chosen: str = ""
    policy_fixed: bool = False
    run: str = ""


ToControlled: TypeAlias = SwitchTo | AskStatus | Absent | DrainWorker | RemoveWorker | TakeCheckpoint | EndJob
"""What a controller can send."""
