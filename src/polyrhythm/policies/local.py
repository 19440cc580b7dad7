"""Local SGD: every worker trains its own replica; all replicas are averaged every h steps."""

from dataclasses import dataclass
from typing import ClassVar

from polyrhythm.core import Bounds, Cluster, Sync
from polyrhythm.policies.checks import require_at_least
from polyrhythm.policies.rounds import Rounds, RoundState


@dataclass(frozen=True)
class LocalSGD(Rounds):
    """Local SGD (Stich 2019): h steps on each worker's own replica, then w = (1/n) * sum_p w_p over the live workers.

    ``h=1`` has BSP's schedule, and its parameters too under plain SGD without momentum.

    Args:
        h: local steps between two averages, at least 1.

    Example:
        >>> from polyrhythm.core import Joined, Proceed, Report
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

    def __post_init__(self) -> None:
        require_at_least(1, h=self.h)

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way; a step on a replica is never stale."""
        del cluster
        return Bounds(lead=self.h, staleness=0)

    def length(self, state: RoundState) -> int:
        return self.h

    def exchange(self, state: RoundState, workers: tuple[int, ...]) -> Sync:
        return Sync(workers, "parameters")
