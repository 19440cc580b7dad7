"""K-sync: each round takes the first K gradients and abandons the other steps."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from polyrhythm.core import (
    Alarm,
    Bounds,
    Cancel,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.checks import require_at_least


@dataclass(frozen=True, slots=True)
class Round:
    """Who computes in the round under way, and who has reported."""

    running: WorkerMap[bool] = field(default_factory=WorkerMap)
    waiting: WorkerMap[bool] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class FirstArrivals(Policy[Round]):
    """Rounds that end with the first arrivals: their mean is applied, all other steps are cancelled, all restart.

    A subclass says how many arrivals end a round.
    """

    traits: ClassVar[Traits] = Traits(cancels=True)

    @abstractmethod
    def quota(self, live: int) -> int:
        """How many of the `live` workers a round waits for, from 1 to `live`."""

    def init(self, cluster: Cluster) -> Round:
        return Round()

    def bounds(self, cluster: Cluster) -> Bounds:
        """All compute on the newest version; who is cancelled falls behind without limit."""
        everyone = self.quota(cluster.workers) == cluster.workers
        return Bounds(lead=1, staleness=0) if everyone else Bounds(staleness=0)

    def decide(self, state: Round, event: Event) -> tuple[Round, Decisions]:
        match event:
            case Report(worker=worker):
                return self.end_if_enough(Round(state.running.remove(worker), state.waiting.set(worker, True)))
            case Joined(workers=workers):
                return Round(state.running.set_all(workers, True), state.waiting), (Proceed(workers),)
            case Left(worker=worker):
                return self.end_if_enough(Round(state.running.remove(worker), state.waiting.remove(worker)))
            case Alarm():
                return state, ()

    def end_if_enough(self, state: Round) -> tuple[Round, Decisions]:
        live = len(state.running) + len(state.waiting)
        if not state.waiting or len(state.waiting) < self.quota(live):
            return state, ()
        first, late = tuple(state.waiting), tuple(state.running)
        everyone = state.running.set_all(first, True)
        cancel = (Cancel(late),) if late else ()
        return Round(everyone), (Sync(first), *cancel, Proceed(tuple(everyone)))


@dataclass(frozen=True)
class KSync(FirstArrivals):
    """K-sync SGD (Dutta et al. 2018): each round waits for the first K of the n live workers.

    With S the first K workers to report at version w, one update with (1/K) * sum_{p in S} g_p; the others' steps are
    cancelled, their samples are handed out again, and all start from the new version. ``k>=n`` is BSP, so K counts as
    n while fewer than K workers are live.

    Args:
        k: workers per round, at least 1.

    Example:
        >>> policy = KSync(k=1)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> _, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0))
        >>> decisions == (Sync((1,)), Cancel((0,)), Proceed((0, 1)))
        True
    """

    k: int

    name: ClassVar[str] = "k-sync"
    summary: ClassVar[str] = "rounds of the first K gradients; the other steps are cancelled"

    def __post_init__(self) -> None:
        require_at_least(1, k=self.k)

    def quota(self, live: int) -> int:
        return min(self.k, live)
