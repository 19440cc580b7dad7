"""The values that cross between a policy and the driver that runs it: events in, decisions out.

A **worker** is a small non-negative integer. A **step** is one mini-batch on one worker; the **clock** of a worker is
its number of completed steps. A step ends in a **contribution** (its gradient or, for replicas, the parameters that it
led to), which waits in the driver until a `Sync` combines it or it is dropped for a stated reason.

All times are seconds on the coordinator's clock; all durations were measured where they happened. Nothing here holds
a tensor, a socket or a random source, so every value can be compared, hashed, pickled and written to a trace.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from polyrhythm.core.arguments import whole_number

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
        least_share: samples that a mini-batch must have where shares are unequal: 2 where a model has batch norm, which
            can make nothing of one.

    Raises:
        UsageError: for what is no whole number, or below 1 (of `processed_samples`: 0).

    >>> Cluster(workers=4, batch_size=32, workload_samples=6000).workers
    4
    """

    workers: int
    batch_size: int = 1
    workload_samples: int = 1
    processed_samples: int = 0
    dataset_samples: int | None = None
    least_share: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "workload_samples", "least_share"):
            whole_number(name, getattr(self, name), 1)
        if self.dataset_samples is not None:
            whole_number("dataset_samples", self.dataset_samples, 1)
        whole_number("processed_samples", self.processed_samples, 0)


@dataclass(frozen=True, slots=True)
class Joined:
    """Workers are ready for their first step; a job starts with all of its first workers in one event.

    Where an epoch ends for each worker as "finished", all who are still there come back in one event, with the next
    epoch or for mini-batches that somebody has left behind, while nobody is live; newcomers may be among them. Of
    those that had finished and are not named nobody tells more: they are gone. While others are live only newcomers
    come. One that has the number of a worker that had finished is another one: that one has died since, of which
    nobody has told, as it was not live.

    `clock` is where their clocks start: 0 at the start of the job, later the smallest clock of the live workers (the
    largest so far if nobody is live), so that nobody waits for a newcomer to catch up.

    >>> Joined((0, 1), time_s=0.0)
    Joined(workers=(0, 1), time_s=0.0, clock=0)
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

    >>> Report(worker=1, clock=3, time_s=0.25, step_s=0.08).clock
    3
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
    """A live worker is gone; a policy forgets it, waiting or running. Who has finished may come back; see `Joined`.

    Before a worker leaves as "finished" (no mini-batch is left for it) the driver applies what it has pending, as one
    update with the mean; for any other reason its contributions that nobody combined are dropped and counted.

    >>> Left(worker=2, time_s=1.5, clock=12).reason
    'died'
    """

    worker: int
    time_s: float
    clock: int
    reason: LeftReason = "died"


@dataclass(frozen=True, slots=True)
class Alarm:
    """What the policy itself asked for has come: of a `Wake` the time.

    >>> Alarm(time_s=0.5)
    Alarm(time_s=0.5)
    """

    time_s: float


@dataclass(frozen=True, slots=True)
class Stopped(Alarm):
    """A worker has taken a `Stop`: it has abandoned the step in flight, which is counted as dropped, and waits.

    All steps that it completed before have been reported.

    >>> Stopped(time_s=0.5, worker=2)
    Stopped(time_s=0.5, worker=2)
    """

    worker: int


@dataclass(frozen=True, slots=True)
class LossMeasured(Alarm):
    """The loss that a `MeasureLoss` asked for; None where there is no model.

    >>> LossMeasured(time_s=0.5, loss=1.25)
    LossMeasured(time_s=0.5, loss=1.25)
    """

    loss: float | None


Event: TypeAlias = Joined | Report | Left | Alarm


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker uses from its next step on, in place of all Settings before; None is as the job is configured.

    `lr_scale` multiplies the rate in force, which convention and schedule have scaled already.

    >>> Proceed((0, 1), settings=Settings(lr_scale=0.5)).settings.lr_scale
    0.5
    """

    lr_scale: float | None = None
    momentum: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    """The optimizer that applies a mean delta d to the global parameters w, as SGD with the gradient -d.

    With velocity v: ``v <- momentum * v + d``, then ``w <- w + lr * v``, or with `nesterov`
    ``w <- w + lr * (d + momentum * v)``. The default puts w at the mean of the replicas that started from it.

    >>> Sync((0, 1), "deltas", outer=Outer(lr=0.7, momentum=0.9, nesterov=True)).outer.lr
    0.7
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

    >>> Sync((0, 0, 2), weights=(1.0, 1.0, 2.0)).workers
    (0, 0, 2)
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

    Args:
        workers: who.
        exchange: see `Exchange`.
        settings: what these workers use from this step on.
        shares: samples of each one's mini-batch in this step, in the order of `workers`: together as many as if each
            had the job's batch size. None is that size, or the one that settings have set.

    >>> Proceed((0, 1)).exchange
    'gradients'
    """

    workers: tuple[int, ...]
    exchange: Exchange = "gradients"
    settings: Settings | None = None
    shares: tuple[int, ...] | None = None

    def share(self, worker: int) -> int | None:
        """Samples of one of `workers` in this step, if it has a share.

        >>> Proceed((0, 2), shares=(7, 1)).share(2), Proceed((0, 2)).share(2)
        (1, None)
        """
        return None if self.shares is None else self.shares[self.workers.index(worker)]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Abandon the step in flight of these workers, and what they have pending; each then waits. Counted as dropped.

    >>> Cancel((3,))
    Cancel(workers=(3,))
    """

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell these running workers, which go on without an answer to their reports, to stop.

    Until the word has come to a worker it goes on, and its reports are still answered with a `Proceed` each. Then it
    abandons the step in flight and sends what its replica has learned, for the `Sync` that follows its `Stopped`.

    >>> Stop((0, 2))
    Stop(workers=(0, 2))
    """

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """Send an `Alarm` at this time.

    >>> Wake(time_s=0.5)
    Wake(time_s=0.5)
    """

    time_s: float


@dataclass(frozen=True, slots=True)
class MeasureLoss(Wake):
    """Evaluate the global parameters at this time, and send me a `LossMeasured`.

    The loss is the mean over the job's **probe batch**, the same training samples every time. No worker computes it,
    and it takes no virtual time. Only the simulator has parameters and model in one process.

    >>> MeasureLoss(time_s=0.5)
    MeasureLoss(time_s=0.5)
    """


Decision: TypeAlias = Sync | Proceed | Cancel | Stop | Wake
Decisions: TypeAlias = tuple[Decision, ...]
