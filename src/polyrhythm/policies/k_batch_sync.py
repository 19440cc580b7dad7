"""K-batch-sync: each round takes the first K mini-batches of one version, whoever computed them."""

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
from polyrhythm.policies.k_batch_async import Batches


@dataclass(frozen=True, slots=True)
class BatchRound:
    """Who is live, and the gradients of the round under way."""

    live: WorkerMap[bool] = field(default_factory=WorkerMap)
    batches: Batches = field(default_factory=Batches)


@dataclass(frozen=True)
class KBatchSync(Policy[BatchRound]):
    """K-batch-sync SGD (Dutta et al. 2018): each round waits for the first K mini-batches at version w, from anyone.

    A worker that finishes early draws another mini-batch at the same w. The K-th arrival ends the round: one update
    with (1/K) * sum_i g_i, the steps in flight are cancelled, and all start from the new version. K counts as n while
    fewer than K workers are live, so one worker alone is plain training.

    Args:
        k: mini-batches per round, at least 1.

    Example:
        >>> policy = KBatchSync(k=2)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> state, decisions = policy.decide(state, Report(worker=1, clock=1, time_s=1.0))
        >>> decisions == (Proceed((1,)),)
        True
        >>> _, decisions = policy.decide(state, Report(worker=1, clock=2, time_s=2.0))
        >>> decisions == (Sync((1, 1)), Cancel((0,)), Proceed((0, 1)))
        True
    """

    k: int

    name: ClassVar[str] = "k-batch-sync"
    summary: ClassVar[str] = "rounds of the first K mini-batches; the other steps are cancelled"
    traits: ClassVar[Traits] = Traits(cancels=True)

    def __post_init__(self) -> None:
        require_at_least(1, k=self.k)

    def init(self, cluster: Cluster) -> BatchRound:
        return BatchRound()

    def bounds(self, cluster: Cluster) -> Bounds:
        """All compute on the newest version, except that what a finished worker has pending is an update of its own."""
        return Bounds(staleness=cluster.workers - 1)

    def decide(self, state: BatchRound, event: Event) -> tuple[BatchRound, Decisions]:
        match event:
            case Report(worker=worker):
                return self.after_report(BatchRound(state.live, state.batches.add(worker)), worker)
            case Joined(workers=workers):
                batches = Batches(state.batches.live + len(workers), state.batches.held, state.batches.total)
                return BatchRound(state.live.set_all(workers, True), batches), (Proceed(workers),)
            case Left(worker=worker):
                return self.after_left(BatchRound(state.live.remove(worker), state.batches.leave(worker)))
            case Alarm():
                return state, ()

    def after_report(self, state: BatchRound, worker: int) -> tuple[BatchRound, Decisions]:
        if not state.batches.holds(self.k):
            return state, (Proceed((worker,)),)
        return end_round(state, tuple(w for w in state.live if w != worker))

    def after_left(self, state: BatchRound) -> tuple[BatchRound, Decisions]:
        """End the round if so few workers are live that what has gathered is enough; all of them are running."""
        if not state.batches.holds(self.k):
            return state, ()
        return end_round(state, tuple(state.live))


def end_round(state: BatchRound, running: tuple[int, ...]) -> tuple[BatchRound, Decisions]:
    """Apply what has gathered, abandon the steps that are running, and start everyone on the new version."""
    cancel = (Cancel(running),) if running else ()
    decisions = (Sync(state.batches.workers), *cancel, Proceed(tuple(state.live)))
    return BatchRound(state.live, Batches(state.batches.live)), decisions
