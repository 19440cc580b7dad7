"""Bulk synchronous parallel: everyone waits for the slowest, every step."""

from dataclasses import dataclass
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
from polyrhythm.policies._lib.barrier import Barrier


@dataclass(frozen=True)
class BSP(Policy[Barrier]):
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
    traits: ClassVar[Traits] = Traits(placement="clock", steady=True)

    def init(self, cluster: Cluster) -> Barrier:
        return Barrier()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way, and everyone reads the newest parameters."""
        return Bounds(lead=1, staleness=0)

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        match event:
            case Report(worker=worker):
                state = state.arrive(worker)
            case Joined(workers=workers):
                return state.join(len(workers)), (Proceed(workers),)
            case Left(worker=worker):
                state = state.leave(worker)
            case Alarm():
                return state, ()
        state, released = state.release(state.live)
        return state, (Sync(released), Proceed(released)) if released else ()
