"""K-group: apply every gradient at once, and release the workers in groups of K."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from polyrhythm.core import Alarm, Bounds, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.checks import require_at_least


@dataclass(frozen=True)
class KGroup(Policy[Barrier]):
    """K-group: each gradient is applied when it arrives; its worker is held until K workers are held, then all go on.

    It is the policy behind the actions "nobody" and "all" of RLP with a fixed threshold: stragglers delay nobody, and
    the K workers that start together share one read of the parameters. ``k=1`` is ASP. K counts as n while fewer than
    K workers are live.

    Args:
        k: workers per group, at least 1; the number of healthy workers is a good value.

    Example:
        >>> policy = KGroup(k=2)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=3)), Joined((0, 1, 2), time_s=0.0))
        >>> state, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0))
        >>> decisions == (Sync((1,)),)
        True
        >>> policy.decide(state, Report(worker=0, clock=1, time_s=2.0))[1] == (Sync((0,)), Proceed((0, 1)))
        True
    """

    k: int

    name: ClassVar[str] = "k-group"
    summary: ClassVar[str] = "gradients apply at once; workers go on in groups of K"

    def __post_init__(self) -> None:
        require_at_least(1, k=self.k)

    def init(self, cluster: Cluster) -> Barrier:
        return Barrier()

    def bounds(self, cluster: Cluster) -> Bounds:
        """If K is everyone, each other worker pushes once a round; otherwise a slow one falls behind without limit."""
        return Bounds(lead=1, staleness=cluster.workers - 1) if self.k >= cluster.workers else Bounds()

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        match event:
            case Report(worker=worker):
                return self.release_if_enough(state.arrive(worker), applied(worker))
            case Joined(workers=workers):
                return state.join(len(workers)), (Proceed(workers),)
            case Left(worker=worker):
                return self.release_if_enough(state.leave(worker), ())
            case Alarm():
                return state, ()

    def release_if_enough(self, barrier: Barrier, decisions: Decisions) -> tuple[Barrier, Decisions]:
        barrier, released = barrier.release(self.k)
        return barrier, (*decisions, Proceed(released)) if released else decisions


@lru_cache(maxsize=1024)
def applied(worker: int) -> Decisions:
    """A worker's gradient is applied alone; the same decision each time, which saves making it."""
    return (Sync((worker,)),)
