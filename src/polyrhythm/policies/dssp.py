"""Dynamic stale synchronous parallel: the fastest worker may run ahead if the wait that follows is shorter."""

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar, NamedTuple

from polyrhythm.core import Alarm, Bounds, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies.checks import require_at_least
from polyrhythm.policies.clocks import ClockGroups


class Pushes(NamedTuple):
    """The last two push times of a worker, and how many steps beyond s_low it may still start."""

    last_s: float
    previous_s: float | None = None
    granted: int = 0


@dataclass(frozen=True, slots=True)
class DSSPState:
    """Clocks of the live workers, those of them that are parked, and the pushes of each."""

    clocks: ClockGroups = field(default_factory=ClockGroups)
    parked: ClockGroups = field(default_factory=ClockGroups)
    pushes: WorkerMap[Pushes] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class DSSP(Policy[DSSPState]):
    """Dynamic SSP (Zhao et al. 2019): SSP(s_low) whose fastest worker is granted up to s_high - s_low extra steps.

    When a fastest worker p would be parked, its push times t_p + r * d_p after r more steps and those of a slowest
    worker q, t_q + k * d_q for k = 1, 2, ..., are predicted from the last two pushes of each (d is their distance).
    p is granted the r from 0 to s_high - s_low after which it waits least for the next push of q; ties go to the
    smaller r. Each step that it then starts uses one grant. Without two pushes of both, r = 0. ``s_low=s_high`` is
    SSP(s_low).

    Args:
        s_low: the bound that always holds without a grant.
        s_high: the bound that no grant exceeds.

    Differs from the paper where a worker that has used its grant is still a fastest one beyond s_low: the next grant
    is limited to what is left up to s_high, so that s_high is a bound; without that limit grants add up. Of several
    slowest workers the one with the smallest number is asked.

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
        del cluster
        return DSSPState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Those of SSP(s_high)."""
        return Bounds(lead=self.s_high + 1, staleness=(cluster.workers - 1) * (2 * self.s_high + 1))

    def decide(self, state: DSSPState, event: Event) -> tuple[DSSPState, Decisions]:
        match event:
            case Report(worker=worker, clock=clock, time_s=time_s):
                return self.after_report(state, worker, clock, time_s)
            case Joined(workers=workers, clock=clock):
                return DSSPState(state.clocks.add(clock, workers), state.parked, state.pushes), (Proceed(workers),)
            case Left(worker=worker, clock=clock):
                return self.after_left(state, worker, clock)
            case Alarm():
                return state, ()

    def after_report(self, state: DSSPState, worker: int, clock: int, time_s: float) -> tuple[DSSPState, Decisions]:
        """Apply the gradient; then park its worker, or let it go on, and with it all whom it held up."""
        clocks = state.clocks.move(worker, clock)
        before = state.pushes.get(worker)
        pushes = Pushes(time_s, before.last_s, before.granted) if before else Pushes(time_s)
        starts, pushes = self.may_start(clocks, state.pushes, clock, pushes)
        after = DSSPState(clocks, state.parked, state.pushes.set(worker, pushes))
        if not starts:
            return replace(after, parked=state.parked.add(clock, (worker,))), (Sync((worker,)),)
        after, released = self.release(after)
        return after, (Sync((worker,)), Proceed(tuple(sorted((worker, *released)))))

    def after_left(self, state: DSSPState, worker: int, clock: int) -> tuple[DSSPState, Decisions]:
        """Forget the worker; if it was the last of the slowest, others may go on."""
        clocks, parked = state.clocks.remove(clock, worker), state.parked.remove(clock, worker)
        after, released = self.release(DSSPState(clocks, parked, state.pushes.remove(worker)))
        return after, (Proceed(tuple(sorted(released))),) if released else ()

    def may_start(
        self, clocks: ClockGroups, others: WorkerMap[Pushes], clock: int, pushes: Pushes
    ) -> tuple[bool, Pushes]:
        """Whether a worker at `clock` starts its next step, and its pushes with the grant that this uses."""
        granted = pushes.granted
        if granted == 0:
            lead = clock - clocks.minimum
            if lead <= self.s_low:
                return True, pushes
            slowest = others.get(clocks.first)
            if clock == clocks.maximum and slowest:
                granted = best_grant(self.s_high - lead + 1, pushes, slowest)
        return granted > 0, pushes._replace(granted=max(granted - 1, 0))

    def release(self, state: DSSPState) -> tuple[DSSPState, tuple[int, ...]]:
        """Take out everyone who is parked and by now within s_low of the slowest."""
        limit = state.clocks.minimum + self.s_low
        workers = state.parked.up_to(limit)
        return replace(state, parked=state.parked.above(limit)) if workers else state, workers


def best_grant(limit: int, fastest: Pushes, slowest: Pushes) -> int:
    """The number of extra steps, from 0 to `limit`, after which the fastest worker waits least for the slowest."""
    if fastest.previous_s is None or slowest.previous_s is None or slowest.last_s <= slowest.previous_s:
        return 0
    interval_s = fastest.last_s - fastest.previous_s
    slowest_interval_s = slowest.last_s - slowest.previous_s

    def wait_s(steps: int) -> float:
        return wait_after(steps, fastest.last_s, interval_s, slowest.last_s, slowest_interval_s)

    return min(range(limit + 1), key=wait_s, default=0)


def wait_after(steps: int, last_s: float, interval_s: float, slowest_last_s: float, slowest_interval_s: float) -> float:
    """Predicted seconds from the fastest worker's push, so many steps ahead, to the slowest worker's next push."""
    since_s = last_s + steps * interval_s - slowest_last_s
    return max(1, ceil(since_s / slowest_interval_s)) * slowest_interval_s - since_s
