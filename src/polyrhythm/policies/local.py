"""Local SGD: every worker trains its own replica; all replicas are averaged every h steps."""

import math
from dataclasses import dataclass
from typing import ClassVar

from polyrhythm.core import Bounds, Cluster, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.rounds import Rounds, RoundState

GROWTHS = ("linear", "geometric")


@dataclass(frozen=True)
class LocalSGD(Rounds):
    """Local SGD (Stich 2019): h steps on each worker's own replica, then w = (1/n) * sum_p w_p over the live workers.

    ``h=1`` has BSP's schedule, and its parameters too under plain SGD without momentum.

    Args:
        h: local steps between two averages, at least 1; with `last`, of the first round.
        last: steps of the rounds at the end of the workload, at least 1; None is `h` throughout. With s the share of
            the workload that is processed when a round starts, it has ``h + (last - h) * s`` steps, rounded.
        growth: "linear" as above, or "geometric": ``h * (last / h) ** s``, which doubles at even intervals.

    Long rounds cost little late in a training, when the rate is low and replicas hardly drift apart (Gu et al. 2024),
    and most at its start; see also post-local SGD.

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
    last: int | None = None
    growth: str = "linear"

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "own replicas, averaged every h steps"

    def __post_init__(self) -> None:
        require_at_least(1, h=self.h, last=self.h if self.last is None else self.last)
        if self.growth not in GROWTHS:
            raise SpecError(f"growth must be linear or geometric but got {self.growth!r}")

    @property
    def counts_shares(self) -> bool:
        """Only rounds that grow follow the share that is processed."""
        return self.last is not None

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way; a step on a replica is never stale."""
        return Bounds(lead=max(self.h, self.last or 0), staleness=0)

    def length(self, state: RoundState) -> int:
        if self.last is None:
            return self.h
        share = min(1.0, state.processed / state.cluster.workload_samples)
        if self.growth == "linear":
            return round(self.h + (self.last - self.h) * share)
        return round(self.h * math.pow(self.last / self.h, share))

    def exchange(self, state: RoundState, workers: tuple[int, ...]) -> Sync:
        return Sync(workers, "parameters")
