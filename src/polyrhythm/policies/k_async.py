"""K-async: apply the mean of K workers' gradients; the others compute on."""

from dataclasses import dataclass
from typing import ClassVar

from polyrhythm.core import Alarm, Bounds, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.checks import require_at_least


@dataclass(frozen=True)
class KAsync(Policy[Barrier]):
    """K-async SGD (Dutta et al. 2018): an update needs K distinct workers, each at the version that it last read.

    When K of the n live workers wait, their mean (1/K) * sum_p g_p is applied and only they read the new version;
    nobody else is disturbed. ``k=1`` is ASP; ``k>=n`` is BSP, so K counts as n while fewer than K workers are live.

    Args:
        k: workers per update, at least 1.

    Example:
        >>> policy = KAsync(k=1)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> policy.decide(state, Report(worker=1, clock=1, time_s=1.0))[1] == (Sync((1,)), Proceed((1,)))
        True
    """

    k: int

    name: ClassVar[str] = "k-async"
    summary: ClassVar[str] = "an update for every K workers; the others compute on"

    def __post_init__(self) -> None:
        require_at_least(1, k=self.k)

    def init(self, cluster: Cluster) -> Barrier:
        return Barrier()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Those of BSP if K is everyone; otherwise a slow worker may fall behind without limit."""
        return Bounds(lead=1, staleness=0) if self.k >= cluster.workers else Bounds()

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
        state, released = state.release(self.k)
        return state, (Sync(released), Proceed(released)) if released else ()
