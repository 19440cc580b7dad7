"""K-batch-async: an update for every K mini-batches, whoever computed them; nobody waits."""

from dataclasses import dataclass, field
from typing import ClassVar

from polyrhythm.core import Alarm, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.checks import require_at_least


@dataclass(frozen=True, slots=True)
class Batches:
    """How many workers are live, and how many gradients of each of them (and in total) wait for the update."""

    live: int = 0
    held: WorkerMap[int] = field(default_factory=WorkerMap)
    total: int = 0

    def add(self, worker: int) -> "Batches":
        return Batches(self.live, self.held.set(worker, (self.held.get(worker) or 0) + 1), self.total + 1)

    def leave(self, worker: int) -> "Batches":
        return Batches(self.live - 1, self.held.remove(worker), self.total - (self.held.get(worker) or 0))

    def holds(self, quota: int) -> bool:
        """Whether `quota` gradients wait, or as many as there are live workers if these are fewer."""
        return self.total > 0 and self.total >= min(quota, self.live)

    @property
    def workers(self) -> tuple[int, ...]:
        """Each worker as often as it has gradients: what a `Sync` of all of them names."""
        return tuple(worker for worker, count in self.held.items() for _ in range(count))


@dataclass(frozen=True)
class KBatchAsync(Policy[Batches]):
    """K-batch-async SGD (Dutta et al. 2018): an update needs K mini-batches from anyone, each at the version it read.

    A worker that pushes reads and continues at once; if its gradient is the K-th, the mean (1/K) * sum_i g_i of the K
    that have gathered is applied before it reads. ``k=1`` is ASP. K counts as n while fewer than K workers are live,
    so one worker alone is plain training.

    Args:
        k: mini-batches per update, at least 1.

    Example:
        >>> policy = KBatchAsync(k=2)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> state, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0))
        >>> decisions == (Proceed((1,)),)
        True
        >>> policy.decide(state, Report(worker=1, clock=2, time_s=2.0))[1] == (Sync((1, 1)), Proceed((1,)))
        True
    """

    k: int

    name: ClassVar[str] = "k-batch-async"
    summary: ClassVar[str] = "an update for every K mini-batches; nobody waits"

    def __post_init__(self) -> None:
        require_at_least(1, k=self.k)

    def init(self, cluster: Cluster) -> Batches:
        return Batches()

    def decide(self, state: Batches, event: Event) -> tuple[Batches, Decisions]:
        match event:
            case Report(worker=worker):
                return self.update_if_enough(state.add(worker), (Proceed((worker,)),))
            case Joined(workers=workers):
                return Batches(state.live + len(workers), state.held, state.total), (Proceed(workers),)
            case Left(worker=worker):
                return self.update_if_enough(state.leave(worker), ())
            case Alarm():
                return state, ()

    def update_if_enough(self, state: Batches, go_on: Decisions) -> tuple[Batches, Decisions]:
        if not state.holds(self.k):
            return state, go_on
        return Batches(state.live), (Sync(state.workers), *go_on)
