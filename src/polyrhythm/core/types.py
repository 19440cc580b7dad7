"""The values that cross between a policy and the driver that runs it: events in, decisions out.

A **worker** is a small non-negative integer. A **step** is one mini-batch on one worker; the **clock** of a worker is
its number of completed steps. A step ends in a **contribution** (its gradient or, for replicas, the parameters that it
led to), which waits in the driver until a `Sync` combines it or it is dropped for a stated reason.

All times are seconds on the coordinator's clock; all durations were measured where they happened. Nothing here holds
a tensor, a socket or a random source, so every value can be compared, hashed, pickled and written to a trace.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from polyrhythm.errors import UsageError

Exchange: TypeAlias = Literal["gradients", "replicas"]
"""What a step works on: the global parameters, read when it starts, or the worker's own replica."""

Synced: TypeAlias = Literal["gradients", "parameters", "deltas"]
"""What a `Sync` combines."""

LeftReason: TypeAlias = Literal["finished", "died", "hung", "removed"]
"""Why a worker is gone."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a policy may know before the job starts.

    Args:
        workers: number of workers that are planned, at least 1. Who really joins is said by `Joined`.
        batch_size: samples of one mini-batch on one worker.
        workload_samples: samples that the whole job will process; schedules are shares of it.
        processed_samples: how many of them were processed before this policy started, under others or before a
            restart.
        dataset_samples: samples of one epoch; None if nobody knows.
    """

    workers: int
    batch_size: int = 1
    workload_samples: int = 1
    processed_samples: int = 0
    dataset_samples: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "workload_samples", "dataset_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1 but got {value}")


@dataclass(frozen=True, slots=True)
class Joined:
    """Workers are ready for their first step; a job starts with all of its first workers in one event.

    `clock` is where their clocks start: 0 at the start of the job, later the smallest clock of the live workers (the
    largest so far if nobody is live), so that nobody waits for a newcomer to catch up.
    """

    workers: tuple[int, ...]
    time_s: float
    clock: int = 0


class Report(NamedTuple):
    """A worker has completed a step and waits; its contribution has arrived.

    One is made in every step of every worker, and a frozen dataclass takes six times as long to make as a tuple.

    Attributes:
        worker: who.
        clock: its completed steps, this one included.
        time_s: arrival, on the coordinator's clock.
        samples: size of the mini-batch.
        step_s: duration of the computation, measured by the worker.
        transfer_s: duration of the transfers of this step (read and push), measured.
        staleness: updates applied to the global parameters between this step's read and its arrival; 0 for replicas.
        loss: mean loss of the mini-batch, if it was computed.
        grad_sq_norm: squared L2 norm of the whole gradient before weight decay, if the policy's traits ask for it.
        wait_s: time that the worker stood in an exchange with the others before this report, where the report follows
            the exchange, as with real workers in synchronous mode; 0 where it precedes it.
    """

    worker: int
    clock: int
    time_s: float
    samples: int = 1
    step_s: float = 0.0
    transfer_s: float = 0.0
    staleness: int = 0
    loss: float | None = None
    grad_sq_norm: float | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone; a policy forgets it, waiting or running.

    Before a worker leaves as "finished" (no mini-batch is left for it) the driver applies what it has pending, as one
    update with the mean; for any other reason its contributions that nobody combined are dropped and counted.
    """

    worker: int
    time_s: float
    clock: int
    reason: LeftReason = "died"


@dataclass(frozen=True, slots=True)
class Alarm:
    """The time that a `Wake` asked for has come."""

    time_s: float


Event: TypeAlias = Joined | Report | Left | Alarm


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker uses from its next step on, in place of all Settings before; None is as the job is configured.

    `lr_scale` multiplies the rate in force, which convention and schedule have scaled already.
    """

    lr_scale: float | None = None
    momentum: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    """The optimizer that applies a mean delta d to the global parameters w, as SGD with the gradient -d.

    With velocity v: ``v <- momentum * v + d``, then ``w <- w + lr * v``, or with `nesterov`
    ``w <- w + lr * (d + momentum * v)``. The default puts w at the mean of the replicas that started from it.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """Combine contributions of these workers into one update.

    Each mention of a worker takes its oldest contribution that is still pending, so ``(0, 0, 2)`` combines two
    gradients of worker 0 and one of worker 2. With contributions c_i and weights w_i the result is
    sum(w_i * c_i) / sum(w_i); ``weights=None`` is the plain mean. "gradients" makes one optimizer step on the global
    parameters, or, of workers whose latest step was on a replica, makes that step with the mean gradient in place of
    each one's own; "parameters" and "deltas" set the global parameters and the named workers' replicas to the average.

    Args:
        workers: whose contributions.
        what: kind of contribution.
        weights: one for each of `workers`.
        adopters: who takes over the result, for replicas; None are `workers`. What an adopter that is not among
            `workers` has pending is dropped.
        outer: how the mean of deltas is applied; None as the configuration says.
        fragment: (index, count), which of `count` parts of the parameters is exchanged; None is all. Any part counts
            as the whole in what is pending.
        delay: further steps of each worker after which it takes over the result, which travels meanwhile: its replica
            moves by the result less what it contributed. 0 is at once.
    """

    workers: tuple[int, ...]
    what: Synced = "gradients"
    weights: tuple[float, ...] | None = None
    adopters: tuple[int, ...] | None = None
    outer: Outer | None = None
    fragment: tuple[int, int] | None = None
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Proceed:
    """Start the next step of these waiting workers, after the decisions before this one are carried out.

    Under "gradients" a worker reads the newest global parameters now; under "replicas" it goes on with its own
    replica (one that has none yet starts from the global parameters). A waiting worker that is not named waits on.
    """

    workers: tuple[int, ...]
    exchange: Exchange = "gradients"
    settings: Settings | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Abandon the step in flight of these workers, and what they have pending; each then waits. Counted as dropped."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """Send an `Alarm` at this time."""

    time_s: float


Decision: TypeAlias = Sync | Proceed | Cancel | Wake
Decisions: TypeAlias = tuple[Decision, ...]
