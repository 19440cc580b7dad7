"""Ringmaster ASGD: asynchronous, without the gradients that are too stale."""

from dataclasses import dataclass, field
from typing import ClassVar

from polyrhythm.core import (
    Alarm,
    Bounds,
    Cancel,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.checks import require_at_least


@dataclass(frozen=True, slots=True)
class Reads:
    """Updates so far, and how many there were when each running worker was told to read."""

    updates: int = 0
    at: WorkerMap[int] = field(default_factory=WorkerMap)

    def start(self, workers: tuple[int, ...]) -> "Reads":
        return Reads(self.updates, self.at.set_all(workers, self.updates))

    def update(self) -> "Reads":
        return Reads(self.updates + 1, self.at)

    def stale(self, r: int) -> tuple[int, ...]:
        """Running workers whose gradients can only come to nothing."""
        return tuple(worker for worker, read in self.at.items() if self.updates - read > r)


@dataclass(frozen=True)
class Ringmaster(Policy[Reads]):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtárik 2025): as ASP, but a gradient that is staler than r is ignored.

    With d the `Report.staleness` of a gradient: it is applied at once if d <= r, otherwise dropped, and its samples are
    handed out again; its worker goes on from the newest parameters either way. With `stop` a step is abandoned as soon
    as d can only be larger than r, which saves the rest of its time. A large r is ASP.

    Args:
        r: largest staleness that is applied, at least 0.
        stop: whether steps in flight are abandoned that come too late.

    Source: arXiv 2501.16168, algorithms 4 and 5 with R = r + 1. Differs: samples that were dropped are processed again.

    Example:
        >>> policy = Ringmaster(r=1)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> _, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0, staleness=2))
        >>> decisions == (Cancel((1,)), Proceed((1,)))
        True
    """

    r: int
    stop: bool = False

    name: ClassVar[str] = "ringmaster"
    summary: ClassVar[str] = "asp without the gradients that are staler than r"
    traits: ClassVar[Traits] = Traits(cancels=True)

    def __post_init__(self) -> None:
        require_at_least(0, r=self.r)

    def init(self, cluster: Cluster) -> Reads:
        return Reads()

    def bounds(self, cluster: Cluster) -> Bounds:
        """With `stop` nothing staler than r arrives at all."""
        return Bounds(staleness=self.r) if self.stop else Bounds()

    def decide(self, state: Reads, event: Event) -> tuple[Reads, Decisions]:
        match event:
            case Report(worker=worker, staleness=staleness) if staleness > self.r:
                return state.start((worker,)), (Cancel((worker,)), Proceed((worker,)))
            case Report(worker=worker):
                return self.after_update(state.update(), worker)
            case Joined(workers=workers):
                return state.start(workers), (Proceed(workers),)
            case Left(worker=worker):
                return Reads(state.updates, state.at.remove(worker)), ()
            case Alarm():
                return state, ()

    def after_update(self, state: Reads, worker: int) -> tuple[Reads, Decisions]:
        state = state.start((worker,))
        late = state.stale(self.r) if self.stop else ()
        cancel = (Cancel(late),) if late else ()
        return state.start(late), (Sync((worker,)), *cancel, Proceed((worker, *late)))
