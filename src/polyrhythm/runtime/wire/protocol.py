"""What workers and the coordinator say to each other about steps; tensors travel beside it as payload.

A worker sends `Ready`, then steps, then `AtEnd`, for every epoch. Under a policy that the **coordinator** runs each
step needs a `Go` and ends in a `Pushed`. Under one that follows from **clocks** it is one of `SynchronousSteps`, ends
in a `Stepped`, and a `Token`, sent a step ahead, says how far to go and whether to stop. Where **every rank** runs it a
`Stepped` has the `MeasuredStep`s of all. A `Phase` starts whenever the policy or the membership changes.
"""

from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from polyrhythm.core import Sync
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import GroupSettings, ReportedFigures
from polyrhythm.telemetry.stragglers import Lateness

StateFlow: TypeAlias = Literal["keep", "upload", "pull"]
"""Where parameters and optimizer state go when a phase starts: nowhere; source to servers; servers to everyone."""

Term: TypeAlias = bool | int | float | str  # of a loader; the same on all workers
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # of samples, steps, epochs or phases
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**53)]

Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # a duration, or a time of a clock

MOST_AHEAD, MOST_SPEC = 2**16, 4096  # mini-batches that a worker may fetch in advance; characters of a policy's spec


class ControlMessage(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all control messages."""


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a job's coordinator is, if that host is lost at `standby`, and what opens its acceptor; of each worker."""

    coordinator: str
    job: str
    token: str = ""
    standby: str = ""


class JobInfo(ControlMessage):
    """The coordinator's first words to a worker: where other shards and the meeting point are, and the job's config.

    With the checkpoint from which it goes on; `script`: see `Ready`. If it `recovers`, another coordinator follows.
    """

    shards: tuple[str, ...]
    store: tuple[str, int]
    config: JobConfig
    resume: str = ""
    script: int | None = None
    recovers: bool = False


class Heartbeat(ControlMessage):
    """The process of this worker is running; what its script has reported since the last one."""

    figures: ReportedFigures = {}


class Cut(ControlMessage):
    """The coordinator's word on the heartbeat's connection: end the collectives of this phase, someone in them is gone,
    who has taken part in those of the first `after` steps."""

    phase: int
    reason: str
    after: int = 0


class LeaveJob(ControlMessage):
    """The coordinator's word there: leave the job when your step is complete."""


class Propose(ControlMessage):
    """The coordinator's word on the heartbeat's connection: can this worker run that policy?"""

    number: int
    policy: str


class Confirmed(ControlMessage):
    """The answer to the `Propose` of this number; without a `refusal` it can."""

    number: Natural
    refusal: str = ""


class Bye(ControlMessage):
    """The worker leaves: its script is through, or goes `early`, or trains `again`. `figures` as in `Heartbeat`."""

    figures: ReportedFigures = {}
    early: bool = False
    again: bool = False


class Ready(ControlMessage):
    """The worker stands before `epoch` and wants to step; `ahead` mini-batches are fetched in advance.

    Each worker has `processed` so many samples of the first epoch; or all but those left came before, as `resumed`.
    `shards` and `rotate` are as in `Shards`; without, all read from one order. All workers must give the same `terms`,
    by the name of the argument, and the same `content` of their data (`training.data.fingerprint`). An unmodified
    `script` calls the job's epoch 0 by this number, and adds up `parts` in a step. Of `own` data positions only count.
    It has come to so many `collectives` of all ranks since the end of the epoch before, if it has stood there.
    """

    epoch: Natural
    dataset_samples: Positive
    batch_size: Positive
    ahead: Annotated[int, msgspec.Meta(ge=0, le=MOST_AHEAD)] = 0
    processed: tuple[Natural, ...] = ()
    shards: tuple[Positive, ...] = ()
    rotate: bool = False
    terms: dict[str, Term] = {}
    content: tuple[float, ...] = ()
    script: int | None = None
    own: bool = False
    parts: Positive = 1
    resumed: Resumption | None = None
    collectives: Natural | None = None

    def __post_init__(self) -> None:
        if sum(self.processed) > self.dataset_samples:
            raise ValueError(f"{sum(self.processed)} of {self.dataset_samples} samples cannot have been processed")


class Pushed(ControlMessage):
    """A step is complete, whose gradient is in shared buffer `buffer`, or has gone to the servers as `PushGradient`.

    `read`: the version that the step started from, where it is older than that of its `Go`."""

    number: Natural
    samples: Natural
    step_s: Finite
    transfer_s: Finite
    loss: float | None = None
    grad_sq_norm: float | None = None
    settings: GroupSettings = ()
    read: Natural | None = None
    buffer: Natural | None = None


class LocalStepDone(ControlMessage):
    """Step `number` on the worker's own replica is complete; what is to come next?"""

    number: Natural
    samples: Natural
    step_s: Finite
    transfer_s: Finite
    loss: float | None = None
    grad_sq_norm: float | None = None


class TookPart(ControlMessage):
    """This worker has taken part in the exchange `number` to its end."""

    number: Natural


class Halted(ControlMessage):
    """The answer to a `Halt`: step `number` is void, and so is everything that was granted and not processed."""

    number: Natural


class Skipped(ControlMessage):
    """The script made no optimizer step `number`, as a GradScaler does that has found infinities."""

    number: Natural
    samples: Natural


class MeasuredStep(NamedTuple):
    """What one worker has measured in a step."""

    grad_sq_norm: float | None = None
    loss: float | None = None


class Stepped(ControlMessage):
    """Step `step` of the synchronous phase is complete.

    By now the parameters of everyone contain the first `exchanged` steps of all; 0 adds none. `shared` says that they
    contain this step of all, whatever they do of those before. Of `step_s` the worker computed, and for `wait_s` it
    waited for others in the exchange. `skipped` says that the script made no optimizer step. `records` are what the
    members have measured in it, `packed`, if the policy decides from that; `at_s` is on the worker's clock.
    """

    step: Natural
    samples: Natural
    step_s: Finite
    exchanged: Natural = 0
    shared: bool = False
    skipped: bool = False
    wait_s: Finite = 0.0
    records: bytes = b""
    at_s: Finite | None = None
    loss: float | None = None


class CollectiveFailed(ControlMessage):
    """An exchange of this phase has failed after `completed` steps; the worker waits for a new `Phase`. Of its last
    step some may have succeeded; fields of `Stepped` are as there. `broken`: by the policy."""

    phase: Natural
    completed: Natural
    detail: str = ""
    exchanged: Natural = 0
    shared: bool = False
    records: bytes = b""
    broken: bool = False
    skipped: bool = False


class AtEnd(ControlMessage):
    """No mini-batch is left on this worker, as far as it knows in `phase`; `early`, it could step but has no data, and
    perhaps first wants an exchange that `stops` all; not early, it is to leave at that stop. `away`: the script waits
    outside of its loop, so nobody is to wait for it; perhaps in a collective, with so many `collectives` since then."""

    epoch: Natural
    phase: Natural
    early: bool = False
    stops: bool = False
    away: bool = False
    collectives: Natural = 0


class Entered(ControlMessage):
    """This worker stands in the phase, and the state is where it has to be. At a checkpoint, with random `streams`."""

    phase: Natural
    streams: bytes = b""


class Diverged(ControlMessage):
    """The loss of this worker in phase `phase` has diverged: it `why`; `rollback` asks to go back if that can be."""

    phase: int
    why: str
    rollback: bool = False


class NonFiniteLoss(ControlMessage):
    """The loss of this worker's step `step` is `loss`, and nobody is to do anything about it but to say so."""

    step: Natural
    loss: float


class SwitchTo(ControlMessage):
    """Change the policy; `by` says who asks, if it is nobody of the job."""

    policy: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)]
    by: Annotated[str, msgspec.Meta(max_length=MOST_SPEC)] = ""


OfStep: TypeAlias = Pushed | LocalStepDone | TookPart | Halted | Skipped | Stepped | CollectiveFailed

ToCoordinator: TypeAlias = Ready | OfStep | AtEnd | Entered | Diverged | NonFiniteLoss | SwitchTo | Bye
OF_WORKER: Final = frozenset(get_args(ToCoordinator))
"""The same as a set."""


class Phase(ControlMessage):
    """A policy starts on these members.

    First all members take the mean of the state of the `contributors`, over a group of their own; without any, all are
    equal. Then `state` flows, from `source` if it is uploaded. Whoever is through has `Entered`, or could not:
    `CollectiveFailed`, also `broken` if it `may_refuse` a policy that its script cannot follow. `version` is that of
    the parameters; the counts say, with the members, which cluster the policy is told of. With `back_to`, the
    contributor first goes back to what it kept as that; with `keeps`, all keep what they agree on as -`number`. With
    `save`, the source writes the checkpoint of that number. The policy begins in `policy_state`, if any, and the worker
    in its `streams`. It `hears` losses; with `weighs` they must be means.
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
    dataset_samples: int
    back_to: int | None = None
    keeps: bool = False
    save: int = 0
    policy_state: str = ""
    streams: bytes = b""
    hears: bool = False
    weighs: bool = False
    may_refuse: bool = False


class SynchronousSteps(ControlMessage):
    """Step through these positions of the epoch as `EpochPlan` cuts them, with these shares if they are unequal."""

    epoch: int
    ranges: tuple[SampleRange, ...]
    batch_size: int
    shares: tuple[int, ...] = ()
    least: int = 1
    least_even: int = 1


class Token(ControlMessage):
    """Steps up to `step` may be made; whether to wait for a `Phase` after it.

    After the step `tell` the coordinator wants to hear of all that are complete: then it has time to grant more. With
    `shares`, these are in force from step `since` on, which nobody has drawn yet; empty ones are equal.
    """

    step: int
    stop: bool
    tell: int
    since: int = 0
    shares: tuple[int, ...] | None = None


class Go(ControlMessage):
    """Read version `version` and start step `number`; `sample_ranges` extend what the worker may draw.

    `last` says that no further sample ranges are expected in this epoch, so that a loader need not wait for any.
    `settings` hold from this step on in place of those before; None leaves them as they are. Where workers go on
    without an answer, only the first and the first after a `Halt` start anything; what others grant is for later steps.
    """

    number: int
    version: int
    sample_ranges: tuple[SampleRange, ...]
    last: bool
    settings: dict[str, float] | None = None


class TakePart(ControlMessage):
    """Exchange `number`, in which all members take part; answered by `TookPart`. A `sync` of nobody is of them all."""

    number: int
    sync: Sync


class Halt(ControlMessage):
    """Abandon the step in flight, and go on with the next `Go`; said only to who goes on without an answer."""


class Accepted(ControlMessage):
    """The `LocalStepDone` of this number has come in time; said only where steps can be cancelled."""

    number: int


class Cancelled(ControlMessage):
    """Step `number` is void: do not push it; the next `Go` replaces it."""

    number: int


class Over(ControlMessage):
    """Instead of a `Go`: no mini-batch is left in this epoch, but more may come back; or who is to leave may do so."""

    epoch: int


class Awaited(ControlMessage):
    """Others have yet to come to the collective in which this worker waits after `epoch`, and begin another epoch."""

    epoch: int


class EpochDone(ControlMessage):
    """Everyone is at the end of `epoch`; the parameters of `version` are final for it. `arrivals` says who was late.
    Of what it has, `samples` were processed, if that is known. Newcomers get the parameters if they are `served`."""

    epoch: int
    version: int
    samples: int | None = None
    arrivals: dict[int, Lateness] = {}
    served: bool = False


class Refused(ControlMessage):
    """The job cannot go on for this worker; `reason` is one line for its user."""

    reason: str


class Ended(ControlMessage):
    """The job has diverged and ends for everyone; `reason` says where, and what it has cost."""

    reason: str


OfPhase: TypeAlias = Phase | SynchronousSteps | Token | Go | TakePart | Halt | Accepted | Cancelled | Over

ToWorker: TypeAlias = OfPhase | Awaited | EpochDone | Refused | Ended
