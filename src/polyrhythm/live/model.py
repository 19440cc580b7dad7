"""The job now: what people want to see of it, made of what its coordinator has said.

Counts come from the latest `Status`, speeds from the difference to an earlier one. Nothing here has a clock of its own.
"""

from typing import Literal, TypeAlias

import msgspec

from polyrhythm.live.verdict import LiveVerdict, Pace, verdict_of
from polyrhythm.runtime.wire.control_protocol import JobEvent, Status, WorkerStatus
from polyrhythm.telemetry.stragglers import Lateness, StragglerKind

LiveActivity: TypeAlias = Literal["computing", "waiting", "at the end", "joining", "leaving"]
"""What a worker does now, as far as the coordinator knows: "at the end" is that of the epoch."""

NOTHING = Lateness(0, 0.0, 0.0, 0.0)
"""How somebody arrives who has made no step."""


class WorkerView(msgspec.Struct, frozen=True):
    """One worker; seconds are means over its latest steps, until the exchange and in it.

    Attributes:
        host: nothing where the coordinator is.
        straggler: its kind, or nothing.
        late: whether it is late now, and then how much: times the median.
        heard_s: how long ago there was a sign of it.
        sent, received: bytes of tensors over its link.
        sent_per_s, received_per_s: the same a second, now.
    """

    rank: int
    host: str
    activity: LiveActivity
    steps: int
    samples: int
    samples_per_s: float
    compute_s: float
    transfer_s: float
    wait_s: float
    straggler: StragglerKind
    late: float | None
    heard_s: float
    sent: float
    received: float
    sent_per_s: float
    received_per_s: float


class JobView(msgspec.Struct, frozen=True):
    """All that is shown of a job at one moment; None is what nobody knows.

    Attributes:
        policy: the one in force.
        chosen: the one that was chosen, if that has put it in force, such as auto.
        epoch: the one under way, from 0; -1 before the first.
        epochs: planned.
        epoch_share: share of the epoch that is done.
        share: share of the job that is done.
        remaining_s: until its end, at the speed of now.
        figures: what the script reports, by its names.
        advice: what stands out; None while there is too little to tell.
        staleness: mean of the gradients that arrived lately; of a policy on gradients.
        lssr: share of steps on replicas that no exchange followed; of a policy on replicas.
        events: the latest last.
        ended: why there is no job any more; nothing while it runs.
    """

    job: str
    time_s: float
    policy: str
    chosen: str
    switching_to: str | None
    phase: int
    epoch: int
    epochs: int | None
    epoch_share: float
    share: float | None
    remaining_s: float | None
    samples: int
    skipped: int
    rolled_back: int
    repeated: int
    samples_per_s: float
    loss: float | None
    figures: dict[str, float]
    staleness: float | None
    lssr: float | None
    updates: int
    applied: int
    dropped: dict[str, int]
    planned: int
    workers: tuple[WorkerView, ...]
    events: tuple[JobEvent, ...]
    notices: tuple[str, ...]
    ended: str
    advice: LiveVerdict | None


def policy_words(view: JobView) -> str:
    """The policy in force, who has put it there, and which one follows."""
    by = f" (by {view.chosen})" if view.chosen else ""
    return f"{view.policy}{by}, switching to {view.switching_to}" if view.switching_to else f"{view.policy}{by}"


def view_of(now: Status, before: Status | None = None, events: tuple[JobEvent, ...] | None = None) -> JobView:
    """The job now.

    Args:
        now: the latest that is known.
        before: what was known earlier, to tell speeds from; without, they are those since the start.
        events: all to be shown; those of `now` if not given.
    """
    rate, share = rate_of(now, before), share_of(now)
    workers = tuple(worker_view(worker, now, before) for worker in now.workers)
    loss = now.figures.get("loss", now.loss)
    dropped = sum(now.dropped.values())
    return JobView(
        job=now.job,
        time_s=now.time_s,
        policy=now.policy,
        chosen=now.chosen,
        switching_to=now.switching_to,
        phase=now.phase,
        epoch=now.epoch,
        epochs=now.epochs,
        epoch_share=epoch_share_of(now),
        share=share,
        remaining_s=remaining_of(now, share, rate),
        samples=now.samples,
        skipped=now.skipped,
        rolled_back=now.rolled_back,
        repeated=now.repeated,
        samples_per_s=rate,
        loss=loss,
        figures={name: value for name, value in now.figures.items() if name != "loss"},
        staleness=staleness_of(now, before),
        lssr=now.local_steps / now.steps if now.replicas and now.steps else None,
        updates=now.version,
        applied=now.applied,
        dropped=now.dropped,
        planned=now.planned,
        workers=workers,
        events=now.events if events is None else events,
        notices=now.notices,
        ended=now.ended,
        advice=verdict_of([pace_of(worker) for worker in workers], loss, dropped, now.applied),
    )


SHORTEST_S = 1e-6
"""Time that a speed is told of."""


def rate_of(now: Status, before: Status | None) -> float:
    """Samples a second; a job that goes back has none.

    >>> earlier = Status("asp", 1, 0, (0,), 100, 0, 0, 0, {}, time_s=1.0)
    >>> rate_of(Status("asp", 1, 0, (0,), 400, 0, 0, 0, {}, time_s=3.0), earlier)
    150.0
    """
    done, since_s = (before.samples, before.time_s) if before else (0, 0.0)
    return per_second(now.samples - done, now.time_s - since_s)


def epoch_share_of(now: Status) -> float:
    if now.epoch < 0 or not now.dataset_samples:
        return 0.0
    return min(1.0, max(0.0, now.done / now.dataset_samples - now.epoch))


def share_of(now: Status) -> float | None:
    """None if nobody has said how many epochs there are, or there are more than that."""
    if not now.epochs or not now.dataset_samples or now.epoch >= now.epochs:
        return None
    return min(1.0, now.done / (now.dataset_samples * now.epochs))


def remaining_of(now: Status, share: float | None, rate: float) -> float | None:
    if share is None or not rate or now.epochs is None:
        return None
    return (now.dataset_samples * now.epochs - now.done) / rate


def staleness_of(now: Status, before: Status | None) -> float | None:
    """Mean over what has arrived since; over all if that is nothing."""
    if now.replicas:
        return None
    count, total = sum(now.staleness), now.staleness_sum
    if before is not None and (new := count - sum(before.staleness)) > 0:
        return (total - before.staleness_sum) / new
    return total / count if count else None


def worker_view(worker: WorkerStatus, now: Status, before: Status | None) -> WorkerView:
    arrival = now.arrivals.get(worker.rank, NOTHING)
    earlier = before.arrivals.get(worker.rank, NOTHING) if before else NOTHING
    lately = steps_between(arrival, earlier)
    was = next((each for each in before.workers if each.rank == worker.rank), None) if before else None
    since_s = now.time_s - before.time_s if before else now.time_s
    return WorkerView(
        rank=worker.rank,
        host=worker.host,
        activity=activity_of(worker, now),
        steps=arrival.steps,
        samples=worker.samples,
        samples_per_s=per_second(worker.samples - (was.samples if was else 0), since_s),
        compute_s=lately.compute_s,
        transfer_s=lately.transfer_s,
        wait_s=lately.wait_s,
        straggler=arrival.kind,
        late=arrival.relative if arrival.late else None,
        heard_s=worker.heard_s,
        sent=worker.sent,
        received=worker.received,
        sent_per_s=per_second(worker.sent - (was.sent if was else 0.0), since_s),
        received_per_s=per_second(worker.received - (was.received if was else 0.0), since_s),
    )


def pace_of(worker: WorkerView) -> Pace:
    parts = worker.compute_s, worker.transfer_s, worker.wait_s
    return Pace(worker.rank, worker.steps, *parts, worker.straggler, worker.late, worker.heard_s)


def per_second(amount: float, elapsed_s: float) -> float:
    return max(0.0, amount / elapsed_s) if elapsed_s > SHORTEST_S else 0.0


def activity_of(worker: WorkerStatus, now: Status) -> LiveActivity:
    if worker.rank not in now.members:
        return "joining"
    if worker.leaving:
        return "leaving"
    if worker.at_end:
        return "at the end"
    return "computing" if worker.running else "waiting"


def steps_between(now: Lateness, before: Lateness) -> Lateness:
    """Means over the steps that came in between; over all if there were none.

    >>> steps_between(Lateness(4, 2.0, 0.0, 0.0), Lateness(2, 1.0, 0.0, 0.0)).compute_s
    3.0
    """
    new = now.steps - before.steps
    if new <= 0 or not before.steps:
        return now

    def mean(name: Literal["compute_s", "transfer_s", "wait_s"]) -> float:
        total: float = getattr(now, name) * now.steps - getattr(before, name) * before.steps
        return max(0.0, total / new)

    return Lateness(new, mean("compute_s"), mean("transfer_s"), mean("wait_s"))
