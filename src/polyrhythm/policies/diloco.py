"""DiLoCo: the mean of what the replicas have learned in h steps is a gradient for an outer optimizer."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from polyrhythm.core import Bounds, Cluster, Decisions, Event, Outer, Sync, Traits
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.quorum import Quorum, QuorumState
from polyrhythm.policies._lib.rounds import ON_REPLICAS, Rounds, RoundState


@dataclass(frozen=True)
class DiLoCo(Rounds):
    """DiLoCo (Douillard et al. 2023) with its streaming form (Douillard et al. 2025) and a quorum (arXiv 2604.21428).

    After h local steps from the global parameters w, with replicas x_p and d = (1/n) * sum_p (x_p - w):
    v <- momentum * v + d, and w <- w + lr * (d + momentum * v), or w <- w + lr * v without `nesterov`. All replicas
    become w. ``lr=1, momentum=0`` is local SGD(h).

    Streaming. The parameters are cut in `fragments` equal parts, each of which is exchanged every h steps, evenly
    staggered: part p after step floor((p + 1) * h / fragments) of each h. With `overlap` the workers go on while an
    exchange travels and take its result over so many steps later: x_p <- x_p + w - (what x_p was when it was sent).

    Args:
        h: local steps between two exchanges of the same parameters, at least 1.
        lr: rate of the outer optimizer.
        momentum: of the outer optimizer, in [0, 1).
        nesterov: its form of momentum.
        overlap: steps that an exchange may take while the workers go on, less than `h`.
        fragments: parts that are exchanged in turn, at most `h`.
        quorum: workers whose h steps suffice for an exchange; 0: all. Who is late goes on undisturbed, and counts by
            its samples in the exchange that follows its own h steps. Not with `overlap` and `fragments`.
        grace: time that the others get once there is a quorum, as a share of that since the last exchange.

    Differs from the papers: fragments are slices of the flat parameters, not layers; the result is taken over whole
    rather than mixed with the replica's own progress, which the replica keeps anyway.

    Example:
        >>> from polyrhythm.core import Joined, Report
        >>> policy = DiLoCo(h=1)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=1)), Joined((0,), time_s=0.0))
        >>> policy.decide(state, Report(worker=0, clock=1, time_s=1.0))[1][0].outer
        Outer(lr=0.7, momentum=0.9, nesterov=True)
    """

    h: int = 32
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    overlap: int = 0
    fragments: int = 1
    quorum: int = 0
    grace: float = 0.1

    name: ClassVar[str] = "diloco"
    summary: ClassVar[str] = "own replicas; every h steps an outer Nesterov step with their mean delta"

    def __post_init__(self) -> None:
        require_at_least(1, h=self.h, fragments=self.fragments)
        require_at_least(0, overlap=self.overlap)
        if not 0 < self.lr < math.inf:
            raise SpecError(f"lr must be positive and finite but got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise SpecError(f"momentum must be in [0, 1) but got {self.momentum}")
        if self.overlap >= self.h:
            raise SpecError(f"overlap must be less than h={self.h} but got {self.overlap}")
        if self.fragments > self.h:
            raise SpecError(f"fragments must be at most h={self.h} but got {self.fragments}")
        require_at_least(0, quorum=self.quorum)
        if not 0 <= self.grace < math.inf:
            raise SpecError(f"grace must be at least 0 and finite but got {self.grace}")
        if self.quorum and (self.overlap or self.fragments > 1):
            raise SpecError(
                f"quorum={self.quorum} exchanges everything at once; leave out overlap={self.overlap} and "
                f"fragments={self.fragments}, or quorum"
            )

    @property
    def traits(self) -> Traits:
        """With a quorum it matters who comes first."""
        return replace(ON_REPLICAS, placement="coordinator") if self.quorum else ON_REPLICAS

    def init(self, cluster: Cluster) -> RoundState:
        return QuorumState(cluster) if self.quorum else super().init(cluster)

    def decide(self, state: RoundState, event: Event) -> tuple[RoundState, Decisions]:
        if isinstance(state, QuorumState):
            return Quorum(self.h, self.quorum, self.grace, self.outer).decide(state, event)
        return super().decide(state, event)

    def figures(self, state: RoundState) -> dict[str, float]:
        """With a quorum: how many workers an exchange goes without, on average."""
        return {"late_workers": state.late / max(1, state.number)} if isinstance(state, QuorumState) else {}

    @property
    def outer(self) -> Outer:
        return Outer(self.lr, self.momentum, self.nesterov and self.momentum > 0)

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the steps between two exchanges, if all wait; a replica is never stale."""
        if self.quorum:
            return Bounds(staleness=0)
        return Bounds(lead=math.ceil(self.h / self.fragments), staleness=0)

    def length(self, state: RoundState) -> int:
        part = state.number % self.fragments
        return (part + 1) * self.h // self.fragments - part * self.h // self.fragments

    def exchange(self, state: RoundState, workers: tuple[int, ...]) -> Sync:
        fragment = (state.number % self.fragments, self.fragments) if self.fragments > 1 else None
        return Sync(workers, "deltas", outer=self.outer, fragment=fragment, delay=self.overlap)
