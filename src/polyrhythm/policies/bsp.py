"""Bulk synchronous parallel: everyone waits for the slowest, every step."""

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
from polyrhythm.core.worker_map import WorkerMap


@dataclass(frozen=True, slots=True)
class BSPState:
    """How many workers are live, and which of them wait at the barrier."""

    live: int = 0
    waiting: WorkerMap[bool] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class BSP(Policy[BSPState]):
    """Bulk synchronous parallel (Valiant 1990): apply the mean gradient of all live workers once, release all.

    With g_p the gradient of worker p and n live workers, each round makes one update with (1/n) * sum_p g_p. A worker
    that leaves leaves the barrier too; one that joins takes part in the round that is under way.

    Example:
        >>> from polyrhythm.core import Cluster, Joined, Report
        >>> policy = BSP()
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> state, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0))
        >>> decisions
        ()
        >>> policy.decide(state, Report(worker=0, clock=1, time_s=2.0))[1] == (Sync((0, 1)), Proceed((0, 1)))
        True
    """

    name: ClassVar[str] = "bsp"
    summary: ClassVar[str] = "everyone waits for the slowest, every step"
    traits: ClassVar[Traits] = Traits(venue="scheduled")

    def init(self, cluster: Cluster) -> BSPState:
        del cluster
        return BSPState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way, and everyone reads the newest parameters."""
        del cluster
        return Bounds(lead=1, staleness=0)

    def decide(self, state: BSPState, event: Event) -> tuple[BSPState, Decisions]:
        match event:
            case Report(worker=worker):
                return release_if_complete(BSPState(state.live, state.waiting.set(worker, True)))
            case Joined(workers=workers):
                return BSPState(state.live + len(workers), state.waiting), (Proceed(workers),)
            case Left(worker=worker):
                return release_if_complete(BSPState(state.live - 1, state.waiting.remove(worker)))
            case Alarm():
                return state, ()


def release_if_complete(state: BSPState) -> tuple[BSPState, Decisions]:
    """Open the barrier once every live worker waits at it."""
    if not state.waiting or len(state.waiting) < state.live:
        return state, ()
    workers = tuple(state.waiting)
    return BSPState(state.live), (Sync(workers), Proceed(workers))
