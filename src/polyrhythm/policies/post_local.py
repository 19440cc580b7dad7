"""Post-local SGD: BSP for a share of the workload, local SGD for the rest."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from polyrhythm.core import (
    Bounds,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Report,
    Traits,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.rounds import RoundState
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.local import LocalSGD


@dataclass(frozen=True, slots=True)
class PostLocalState:
    """The state of the policy in force, and what says when BSP's share is served.

    `processed` are samples whose gradients were applied; `held` has the reports whose gradients wait at the barrier.
    """

    cluster: Cluster
    phase: Barrier | RoundState
    processed: int = 0
    held: WorkerMap[Report] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class PostLocalSGD(Policy[PostLocalState]):
    """Post-local SGD (Lin et al. 2020): BSP until the share `at` of the workload is processed, then local SGD(h).

    The switch is taken at the first barrier at which ``processed >= at * workload_samples``; no step is abandoned.
    ``at=0`` is local SGD, ``at=1`` is BSP.

    Args:
        h: local steps between two averages after the switch, at least 1.
        at: share of the workload, from 0 to 1. Counted in samples whose gradients were applied, not in updates.
        last, growth: how h grows, as with local SGD; shares are those of the whole workload.

    Example:
        >>> policy = PostLocalSGD(h=2, at=0.5)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=1, workload_samples=16)), Joined((0,), time_s=0.0))
        >>> [d.exchange for d in policy.decide(state, Report(0, clock=1, time_s=1.0, samples=7))[1][1:]]
        ['gradients']
        >>> [d.exchange for d in policy.decide(state, Report(0, clock=1, time_s=1.0, samples=8))[1][1:]]
        ['replicas']
    """

    h: int = 8
    at: float = 0.5
    last: int | None = None
    growth: str = "linear"

    name: ClassVar[str] = "post-local"
    summary: ClassVar[str] = "BSP for a share of the workload, then local SGD"
    traits: ClassVar[Traits] = Traits(placement="clock", exchanges=frozenset({"gradients", "replicas"}))

    def __post_init__(self) -> None:
        LocalSGD(self.h, self.last, self.growth)
        if not 0 <= self.at <= 1:
            raise SpecError(f"at must be a share from 0 to 1 but got {self.at}")

    @property
    def local(self) -> LocalSGD:
        return LocalSGD(self.h, self.last, self.growth)

    def init(self, cluster: Cluster) -> PostLocalState:
        processed = cluster.processed_samples
        phase = Barrier() if processed < self.switch_samples(cluster) else self.local.init(cluster)
        return PostLocalState(cluster, phase, processed)

    def switch_samples(self, cluster: Cluster) -> float:
        """Samples that BSP processes; the last barrier of a whole workload would be a switch that nobody sees."""
        return self.at * cluster.workload_samples if self.at < 1 else math.inf

    @property
    def counts_shares(self) -> bool:
        """Not if one of its halves has it all."""
        return 0 < self.at < 1 or self.local.counts_shares

    def bounds(self, cluster: Cluster) -> Bounds:
        """Those of BSP and of local SGD(h)."""
        return self.local.bounds(cluster)

    def decide(self, state: PostLocalState, event: Event) -> tuple[PostLocalState, Decisions]:
        if isinstance(state.phase, RoundState):
            local, decisions = self.local.decide(state.phase, event)
            return PostLocalState(state.cluster, local), decisions
        barrier, decisions = BSP().decide(state.phase, event)
        held = updated(state.held, event)
        if not decisions or isinstance(event, Joined):
            return PostLocalState(state.cluster, barrier, state.processed, held), decisions
        processed = state.processed + sum(report.samples for _, report in held.items())
        if processed < self.switch_samples(state.cluster):
            return PostLocalState(state.cluster, barrier, processed), decisions
        return self.switch(replace(state.cluster, processed_samples=processed), held, event.time_s, decisions[:1])

    def switch(
        self, cluster: Cluster, held: WorkerMap[Report], time_s: float, update: Decisions
    ) -> tuple[PostLocalState, Decisions]:
        """Make BSP's last update; then everyone at the barrier starts the first round of local SGD."""
        clock = max(report.clock for _, report in held.items())
        local, start = self.local.decide(self.local.init(cluster), Joined(tuple(held), time_s, clock))
        return PostLocalState(cluster, local), (*update, *start)


def updated(held: WorkerMap[Report], event: Event) -> WorkerMap[Report]:
    match event:
        case Report(worker=worker):
            return held.set(worker, event)
        case Left(worker=worker):
            return held.remove(worker)
        case _:
            return held
