"""What workers and the coordinator say to each other about steps; tensors travel beside it as payload.

A worker sends `Ready`, then steps, then `AtEnd`, for every epoch. Under a policy that the **coordinator** runs each
step needs a `Go` and ends in a `Pushed`. Under one that follows from **clocks** (synchronous mode) the steps follow
from `SynchronousSteps`: each ends in a `Stepped`, and a `Token`, sent a whole step ahead, says how far to go and
whether to stop there; replicas are averaged before a stop, as at the end of an epoch. Under one that **every rank**
runs it is the same, and a `Stepped` also has the `MeasuredStep`s that the members have exchanged among themselves. A
`Phase` starts whenever the policy or the membership changes.
"""

from struct import Struct
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from polyrhythm.core import Sync
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.shard_protocol import Hyperparameter
from polyrhythm.telemetry.stragglers import Lateness

StateFlow: TypeAlias = Literal["keep", "upload", "pull"]
"""Where parameters and optimizer state go when a phase starts: nowhere; source to servers; servers to everyone."""


class ControlMessage(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all control messages."""


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a job's coordinator is and what opens its acceptor; travels in the environment of the workers."""

    coordinator: str
    job: str
    token: str = ""


class JobInfo(ControlMessage):
    """The coordinator's first words to a worker: where the other shards and the meeting point are, and how the job
    is set.
    """

    shards: tuple[str, ...]
    store: tuple[str, int]
    config: JobConfig


class Heartbeat(ControlMessage):
    """The process of this worker is running."""


class Cut(ControlMessage):
    """The coordinator's word on the heartbeat's connection: end the collectives of this phase, someone in them is gone.

    Of the steps under way, whoever is gone has taken part in the collectives of the first `after`.
    """

    phase: int
    reason: str
    after: int = 0


class AskStatus(ControlMessage):
    """How is the job?"""


class Absent(ControlMessage):
    """The process of this rank has ended; if it never joined, nobody need wait for it."""

    rank: int


class Status(ControlMessage):
    """How the job is. `samples` counts what was processed, `skipped` what was not; `dropped` counts gradients."""

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
    arrivals: dict[int, Lateness] = {}


class Bye(ControlMessage):
    """The script is through; the worker leaves."""


class Ready(ControlMessage):
    """The worker stands before `epoch` and wants to step; `ahead` mini-batches are fetched in advance.

    The first `processed` samples of the job's first epoch were processed before the job was asked. `shards` and
    `rotate` are as in `polyrhythm.core.shards.Shards`; without, all workers read from one order.
    """

    epoch: int
    dataset_samples: int
    batch_size: int
    ahead: int = 0
    processed: int = 0
    shards: tuple[int, ...] = ()
    rotate: bool = False


class Pushed(ControlMessage):
    """A gradient is complete; its bytes are the payload or lie in the worker's buffer. One rate per parameter group.

    `read` is the version that the step started from, where it is older than that of its `Go`.
    """

    number: int
    samples: int
    step_s: float
    transfer_s: float
    loss: float | None = None
    grad_sq_norm: float | None = None
    settings: tuple[dict[str, Hyperparameter], ...] = ()
    read: int | None = None


class LocalStepDone(ControlMessage):
    """Step `number` on the worker's own replica is complete; what is to come next?"""

    number: int
    samples: int
    step_s: float
    transfer_s: float
    loss: float | None = None
    grad_sq_norm: float | None = None


class TookPart(ControlMessage):
    """This worker has taken part in the exchange `number` to its end."""

    number: int


class Skipped(ControlMessage):
    """The script made no optimizer step `number`, as a GradScaler does that has found infinities."""

    number: int
    samples: int


class MeasuredStep(NamedTuple):
    """What one worker has measured in a step."""

    grad_sq_norm: float | None = None
    loss: float | None = None


MEASURED = Struct("<?d?d")


def packed(record: MeasuredStep) -> bytes:
    """A record in as many bytes as any other."""
    norm, loss = record
    return MEASURED.pack(norm is not None, norm or 0.0, loss is not None, loss or 0.0)


def unpacked(data: bytes) -> tuple[MeasuredStep, ...]:
    """The records of these bytes.

    >>> unpacked(packed(MeasuredStep(grad_sq_norm=4.0)) + packed(MeasuredStep(loss=0.5)))
    (MeasuredStep(grad_sq_norm=4.0, loss=None), MeasuredStep(grad_sq_norm=None, loss=0.5))
    """
    fields = MEASURED.iter_unpack(data)
    return tuple([MeasuredStep(a if has_a else None, b if has_b else None) for has_a, a, has_b, b in fields])


class Stepped(ControlMessage):
    """Step `step` of the synchronous phase is complete.

    By now the parameters of everyone contain the first `exchanged` steps of all; 0 adds none. `shared` says that they
    contain this step of all, whatever they do of those before. Of `step_s` the worker computed, and for `wait_s` it
    waited for others in the exchange. `skipped` says that the script made no optimizer step. `records` are what the
    members have measured in it, in their order, if the policy decides from that. It was complete at `at_s` of the
    worker's own clock.
    """

    step: int
    samples: int
    step_s: float
    exchanged: int = 0
    shared: bool = False
    skipped: bool = False
    wait_s: float = 0.0
    records: tuple[MeasuredStep, ...] = ()
    at_s: float | None = None


class CollectiveFailed(ControlMessage):
    """An exchange of this phase has failed after `completed` steps; the worker waits for a new `Phase`.

    Exchanges of its last step may have succeeded before; `exchanged`, `shared` and `records` are as in `Stepped`.
    """

    phase: int
    completed: int
    detail: str = ""
    exchanged: int = 0
    shared: bool = False
    records: tuple[MeasuredStep, ...] = ()


class AtEnd(ControlMessage):
    """No mini-batch of the epoch is left on this worker, as far as it has heard in phase `phase`."""

    epoch: int
    phase: int


class Agreed(ControlMessage):
    """The members of this phase have agreed on a state, and this worker has it."""

    phase: int


class Uploaded(ControlMessage):
    """The source's parameters and optimizer state are with the servers."""

    phase: int


class Diverged(ControlMessage):
    """The loss of this worker in phase `phase` has diverged: it `why`; `rollback` asks to go back if that can be."""

    phase: int
    why: str
    rollback: bool = False


class SwitchTo(ControlMessage):
    policy: str


ToCoordinator: TypeAlias = (
    Ready
    | Agreed
    | Pushed
    | LocalStepDone
    | TookPart
    | Skipped
    | Stepped
    | CollectiveFailed
    | AtEnd
    | Uploaded
    | Diverged
    | SwitchTo
    | Bye
)


class Phase(ControlMessage):
    """A policy starts on these members.

    First all members take the mean of the state of the `contributors`, over a group of their own; if there are none,
    all are equal already. Then `state` flows, from `source` if it is uploaded. `version` is that of the parameters; the
    last three counts say, with the members, which cluster the policy is told of. With `back_to`, the contributor first
    goes back to the state that it has kept of the start of that epoch.
    """

    number: int
    policy: str
    members: tuple[int, ...]
    source: int
    contributors: tuple[int, ...]
    state: StateFlow
    version: int
    batch_size: int
    workload_samples: int
    processed_samples: int
    back_to: int | None = None


class SynchronousSteps(ControlMessage):
    """Step through these positions of the epoch as `EpochPlan` cuts them."""

    epoch: int
    ranges: tuple[SampleRange, ...]
    batch_size: int


class Token(ControlMessage):
    """Steps up to `step` may be made; whether to wait for a `Phase` after it.

    After the step `tell` the coordinator wants to hear of all that are complete: then it has time to grant more.
    """

    step: int
    stop: bool
    tell: int


class Go(ControlMessage):
    """Read version `version` and start step `number`; `sample_ranges` extend what the worker may draw.

    `last` says that no further sample ranges are expected in this epoch, so that a loader need not wait for any.
    `settings` hold from this step on in place of those before; None leaves them as they are.
    """

    number: int
    version: int
    sample_ranges: tuple[SampleRange, ...]
    last: bool
    settings: dict[str, float] | None = None


class TakePart(ControlMessage):
    """Exchange number `number`: every member of the phase takes part, if only with nothing; answered by `TookPart`."""

    number: int
    sync: Sync


class Accepted(ControlMessage):
    """The `LocalStepDone` of this number has come in time; said only where steps can be cancelled."""

    number: int


class Cancelled(ControlMessage):
    """Step `number` is void: do not push it; the next `Go` replaces it."""

    number: int


class Over(ControlMessage):
    """Instead of a `Go`: no mini-batch is left in this epoch; more may come back if another worker dies."""

    epoch: int


class EpochDone(ControlMessage):
    """Everyone is at the end of `epoch`; the parameters of `version` are final for it. `arrivals` says who was late."""

    epoch: int
    version: int
    arrivals: dict[int, Lateness] = {}


class Refused(ControlMessage):
    """The job cannot go on for this worker; `reason` is one line for its user."""

    reason: str


class Ended(ControlMessage):
    """The job has diverged and ends for everyone; `reason` says where, and what it has cost."""

    reason: str


ToWorker: TypeAlias = (
    Phase | SynchronousSteps | Token | Go | TakePart | Accepted | Cancelled | Over | EpochDone | Refused | Ended
)
