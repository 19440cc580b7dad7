"""Local SGD: every worker trains its own replica; all replicas are averaged every h steps."""

from dataclasses import dataclass, field
from typing import ClassVar

from polyrhythm.core import (
    Alarm,
    Bounds,
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
from polyrhythm.policies.barrier import Barrier
from polyrhythm.policies.checks import require_at_least


@dataclass(frozen=True, slots=True)
class LocalState:
    """Who has completed the round under way, and the clock at which it is complete."""

    barrier: Barrier = field(default_factory=Barrier)
    round_end: int = 0


@dataclass(frozen=True)
class LocalSGD(Policy[LocalState]):
    """Local SGD (Stich 2019): h steps on each worker's own replica, then w = (1/n) * sum_p w_p over the live workers.

    ``h=1`` has BSP's schedule, and its parameters too under plain SGD without momentum. A worker that joins starts
    from the global parameters at the smallest clock of the live workers and completes the round with them.

    Args:
        h: local steps between two averages, at least 1.

    Example:
        >>> policy = LocalSGD(h=2)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=1)), Joined((0,), time_s=0.0))
        >>> state, decisions = policy.decide(state, Report(worker=0, clock=1, time_s=1.0))
        >>> decisions == (Proceed((0,), "replicas"),)
        True
        >>> _, decisions = policy.decide(state, Report(worker=0, clock=2, time_s=2.0))
        >>> decisions == (Sync((0,), "parameters"), Proceed((0,), "replicas"))
        True
    """

    h: int = 8

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "own replicas, averaged every h steps"
    traits: ClassVar[Traits] = Traits(venue="scheduled", exchanges=frozenset({"replicas"}))

    def __post_init__(self) -> None:
        require_at_least(1, h=self.h)

    def init(self, cluster: Cluster) -> LocalState:
        del cluster
        return LocalState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way; a step on a replica is never stale."""
        del cluster
        return Bounds(lead=self.h, staleness=0)

    def decide(self, state: LocalState, event: Event) -> tuple[LocalState, Decisions]:
        match event:
            case Report(worker=worker, clock=clock):
                if clock < state.round_end:
                    return state, (Proceed((worker,), "replicas"),)
                return self.average_if_complete(LocalState(state.barrier.arrive(worker), state.round_end))
            case Joined(workers=workers, clock=clock):
                round_end = state.round_end if state.barrier.live else clock + self.h
                return LocalState(state.barrier.join(len(workers)), round_end), (Proceed(workers, "replicas"),)
            case Left(worker=worker):
                return self.average_if_complete(LocalState(state.barrier.leave(worker), state.round_end))
            case Alarm():
                return state, ()

    def average_if_complete(self, state: LocalState) -> tuple[LocalState, Decisions]:
        """Average all replicas once every live worker has completed the round."""
        barrier = state.barrier
        if not barrier.holds(barrier.live):
            return state, ()
        workers = tuple(barrier.waiting)
        average = (Sync(workers, "parameters"), Proceed(workers, "replicas"))
        return LocalState(barrier.open(), state.round_end + self.h), average
