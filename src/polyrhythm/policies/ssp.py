"""Stale synchronous parallel: nobody runs ahead of the slowest by more than a bound."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from polyrhythm.core import Alarm, Bounds, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.clocks import ClockCounts


@dataclass(frozen=True, slots=True)
class SSPState:
    """Clocks of the live workers, and who is parked. All who are parked stand at ``clocks.minimum + s + 1``."""

    clocks: ClockCounts = field(default_factory=ClockCounts)
    parked: WorkerMap[bool] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class SSP(Policy[SSPState]):
    """Stale synchronous parallel (Ho et al. 2013): a bounded lead over the slowest worker.

    Each gradient is applied when it arrives. Worker p then starts its next step iff ``clock_p - min_q clock_q <= s``
    over the live workers q; otherwise it is parked until the minimum advances. Completed clocks therefore never differ
    by more than s + 1. ``s=0`` has BSP's schedule, ``s=inf`` is ASP.

    Args:
        s: the bound, a whole number of steps or inf.

    Differs from RLP (section 3.1), which blocks at a lead of s: its SSP(s) is this SSP(s - 1).

    Example:
        >>> from polyrhythm.core import Cluster, Joined, Report
        >>> policy = SSP(s=0)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> policy.decide(state, Report(worker=1, clock=1, time_s=1.0))[1] == (Sync((1,)),)
        True
    """

    s: float = 3

    name: ClassVar[str] = "ssp"
    summary: ClassVar[str] = "at most s steps ahead of the slowest"

    def __post_init__(self) -> None:
        if self.s < 0 or not (math.isinf(self.s) or float(self.s).is_integer()):
            raise SpecError(f"s must be a whole number of at least 0, or inf, but got {self.s:g}")

    def init(self, cluster: Cluster) -> SSPState:
        return SSPState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """While p computes, each other worker pushes at most 2s + 1 times: from s behind p to s + 1 ahead of it."""
        return Bounds(lead=self.s + 1, staleness=(cluster.workers - 1) * (2 * self.s + 1))

    def decide(self, state: SSPState, event: Event) -> tuple[SSPState, Decisions]:
        match event:
            case Report(worker=worker, clock=clock):
                return self.after_report(state, worker, clock)
            case Joined(workers=workers, clock=clock):
                return SSPState(state.clocks.add(clock, len(workers)), state.parked), (Proceed(workers),)
            case Left(worker=worker, clock=clock):
                return self.after_left(state, worker, clock)
            case Alarm():
                return state, ()

    def after_report(self, state: SSPState, worker: int, clock: int) -> tuple[SSPState, Decisions]:
        """Apply the gradient; then park its worker, or let it and all whom it held up go on."""
        clocks = state.clocks.advance(clock)
        if clock - clocks.minimum > self.s:
            return SSPState(clocks, state.parked.set(worker, True)), (Sync((worker,)),)
        if clocks.minimum == state.clocks.minimum or not state.parked:
            return SSPState(clocks, state.parked), (Sync((worker,)), Proceed((worker,)))
        return SSPState(clocks), (Sync((worker,)), Proceed(tuple(state.parked.set(worker, True))))

    def after_left(self, state: SSPState, worker: int, clock: int) -> tuple[SSPState, Decisions]:
        """Forget the worker; if it was the last of the slowest, whoever is parked goes on."""
        clocks, parked = state.clocks.remove(clock), state.parked.remove(worker)
        if clocks.minimum == state.clocks.minimum or not parked:
            return SSPState(clocks, parked), ()
        return SSPState(clocks), (Proceed(tuple(parked)),)
