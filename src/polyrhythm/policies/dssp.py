"""Dynamic stale synchronous parallel: the fastest worker may run ahead if the wait that follows is shorter."""

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, NamedTuple

from polyrhythm.core import Alarm, Bounds, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.clocks import ClockGroups
from polyrhythm.policies._lib.epochs import still_known


class PushPace(NamedTuple):
    """The last push of a worker, the time that its step took, when its next step started, and its grant left."""

    last_s: float
    interval_s: float | None
    started_s: float
    granted: int = 0


@dataclass(frozen=True, slots=True)
class DSSPState:
    """Clocks of the live workers, those of them that are parked, and the pace of each, also of who has finished."""

    clocks: ClockGroups = field(default_factory=ClockGroups)
    parked: ClockGroups = field(default_factory=ClockGroups)
    paces: WorkerMap[PushPace] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class DSSP(Policy[DSSPState]):
    """Dynamic SSP (Zhao et al. 2019): SSP(s_low) whose fastest worker is granted up to s_high - s_low extra steps.

    When a fastest worker p would be parked, its push times t_p + r * d_p after r more steps and those of a slowest
    worker q, t_q + k * d_q for k = 1, 2, ..., are predicted from the last two pushes of each, d apart. p is granted the
    r from 0 to s_high - s_low after which it waits least for the next push of q; ties go to the smaller r. Each step
    that it then starts uses one grant. Without two pushes of both, r = 0. ``s_low=s_high`` is SSP(s_low).

    Args:
        s_low: the bound that always holds without a grant.
        s_high: the bound that no grant exceeds.

    Differs from the paper in two points. Time that a worker was parked between two pushes is no part of d: with it, a
    worker that is parked once after every push seems as slow as the slowest and is never granted a step again. And
    where a worker has used its grant but is still a fastest one beyond s_low, the next grant is limited to what is left
    up to s_high; without that limit grants add up and s_high is no bound. Of several slowest workers the one with the
    smallest number is asked. Paces outlast the end of an epoch: its start stands for a push.

    Example:
        >>> wait_after(1, last_s=10.0, interval_s=2.0, slowest_last_s=6.0, slowest_interval_s=7.0)
        1.0
    """

    s_low: int = 3
    s_high: int = 15

    name: ClassVar[str] = "dssp"
    summary: ClassVar[str] = "SSP whose bound moves between s_low and s_high with the predicted wait"

    def __post_init__(self) -> None:
        require_at_least(0, s_low=self.s_low, s_high=self.s_high)
        if self.s_high < self.s_low:
            raise SpecError(f"s_high must be at least s_low={self.s_low} but got {self.s_high}")

    def init(self, cluster: Cluster) -> DSSPState:
        return DSSPState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Those of SSP(s_high)."""
        return Bounds(lead=self.s_high + 1, staleness=(cluster.workers - 1) * (2 * self.s_high + 1))

    def decide(self, state: DSSPState, event: Event) -> tuple[DSSPState, Decisions]:
        match event:
            case Report(worker=worker, clock=clock, time_s=time_s):
                return self.after_report(state, worker, clock, time_s)
            case Joined(workers=workers):
                return self.after_joined(state, event), (Proceed(workers),)
            case Left():
                return self.after_left(state, event)
            case Alarm():
                return state, ()

    def after_report(self, state: DSSPState, worker: int, clock: int, time_s: float) -> tuple[DSSPState, Decisions]:
        """Apply the gradient; then park its worker, or let it go on, and with it all whom it held up."""
        clocks = state.clocks.move(worker, clock)
        before = state.paces.get(worker)
        pace = PushPace(time_s, time_s - before.started_s if before else None, time_s, before.granted if before else 0)
        starts, granted = self.grant(clocks, state.paces, clock, pace)
        paces = state.paces.set(worker, pace._replace(granted=granted))
        if not starts:
            return DSSPState(clocks, state.parked.add(clock, (worker,)), paces), (Sync((worker,)),)
        after, released = self.release(DSSPState(clocks, state.parked, paces), time_s)
        return after, (Sync((worker,)), Proceed(tuple(sorted((worker, *released)))))

    def after_joined(self, state: DSSPState, joined: Joined) -> DSSPState:
        """Who is back for the next epoch is as fast as it was; that it starts stands for its last push."""
        paces, time_s = still_known(state.paces, joined, len(state.clocks.groups)), joined.time_s
        for worker in joined.workers:
            if pace := paces.get(worker):
                paces = paces.set(worker, PushPace(time_s, pace.interval_s, time_s))
        return DSSPState(state.clocks.add(joined.clock, joined.workers), state.parked, paces)

    def after_left(self, state: DSSPState, left: Left) -> tuple[DSSPState, Decisions]:
        """Without the worker; if it was the last of the slowest, others may go on."""
        worker, clock, paces = left.worker, left.clock, still_known(state.paces, left, len(state.clocks.groups))
        clocks, parked = state.clocks.remove(clock, worker), state.parked.remove(clock, worker)
        after, released = self.release(DSSPState(clocks, parked, paces), left.time_s)
        return after, (Proceed(tuple(sorted(released))),) if released else ()

    def grant(self, clocks: ClockGroups, paces: WorkerMap[PushPace], clock: int, pace: PushPace) -> tuple[bool, int]:
        """Whether a worker at `clock` starts its next step, and what is left of its grant then."""
        granted = pace.granted
        if granted == 0:
            lead = clock - clocks.minimum
            if lead <= self.s_low:
                return True, 0
            slowest = paces.get(clocks.first)
            if clock == clocks.maximum and slowest:
                granted = best_grant(self.s_high - lead + 1, pace, slowest)
        return granted > 0, max(granted - 1, 0)

    def release(self, state: DSSPState, time_s: float) -> tuple[DSSPState, tuple[int, ...]]:
        """Take out everyone who is parked and by now within s_low of the slowest; their next steps start now."""
        limit = state.clocks.minimum + self.s_low
        if not state.parked.groups or state.parked.minimum > limit:
            return state, ()
        workers, paces = state.parked.up_to(limit), state.paces
        for worker in workers:
            pace = paces.get(worker)
            assert pace is not None, "who is parked has pushed"
            paces = paces.set(worker, pace._replace(started_s=time_s))
        return DSSPState(state.clocks, state.parked.above(limit), paces), workers


def best_grant(limit: int, fastest: PushPace, slowest: PushPace) -> int:
    """The number of extra steps, from 0 to `limit`, after which the fastest worker waits least for the slowest."""
    interval_s, slowest_interval_s = fastest.interval_s, slowest.interval_s
    if interval_s is None or not slowest_interval_s:
        return 0

    def wait_s(steps: int) -> float:
        return wait_after(steps, fastest.last_s, interval_s, slowest.last_s, slowest_interval_s)

    return min(range(limit + 1), key=wait_s, default=0)


def wait_after(steps: int, last_s: float, interval_s: float, slowest_last_s: float, slowest_interval_s: float) -> float:
    """Predicted seconds from the fastest worker's push, so many steps ahead, to the slowest worker's next push."""
    since_s = last_s + steps * interval_s - slowest_last_s
    return max(1, ceil(since_s / slowest_interval_s)) * slowest_interval_s - since_s
