"""A policy of your own in one file: BSP that waits at most so long for the slowest."""

import math
from dataclasses import dataclass

from polyrhythm import (
    Alarm,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Wake,
)


@dataclass(frozen=True)
class Barrier:
    """How many workers are live, who waits, and when the barrier opens at the latest."""

    live: int = 0
    waiting: frozenset[int] = frozenset()
    opens_s: float = math.inf


@dataclass(frozen=True)
class WaitLimit(Policy[Barrier]):
    """The first worker at the barrier waits at most `limit_s` seconds; then all who are there go on with their mean.

    Who comes later is not cancelled: its gradient, stale by then, opens the next round.
    """

    limit_s: float = 1.0

    name = "wait-limit"
    summary = "BSP that waits at most limit_s seconds for the slowest"

    def __post_init__(self) -> None:
        if not 0 <= self.limit_s < math.inf:
            raise ValueError(f"limit_s must be at least 0 and finite but got {self.limit_s}")

    def init(self, cluster: Cluster) -> Barrier:
        return Barrier()

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        match event:
            case Joined(workers=workers):
                return Barrier(state.live + len(workers), state.waiting, state.opens_s), (Proceed(workers),)
            case Report(worker=worker, time_s=time_s):
                first = not state.waiting
                opens_s = time_s + self.limit_s if first else state.opens_s
                arrived = Barrier(state.live, state.waiting | {worker}, opens_s)
                return open_if_due(arrived, time_s, (Wake(opens_s),) if first else ())
            case Left(worker=worker, time_s=time_s):
                return open_if_due(Barrier(state.live - 1, state.waiting - {worker}, state.opens_s), time_s)
            case Alarm(time_s=time_s):
                return open_if_due(state, time_s)


def open_if_due(barrier: Barrier, time_s: float, otherwise: Decisions = ()) -> tuple[Barrier, Decisions]:
    """Open if everyone is there or the time is up; an alarm of a round that is over finds a later `opens_s`."""
    workers = tuple(sorted(barrier.waiting))
    if workers and (len(workers) == barrier.live or time_s >= barrier.opens_s):
        return Barrier(barrier.live), (Sync(workers), Proceed(workers))
    return barrier, otherwise
