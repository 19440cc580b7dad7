"""FedAvg: the replicas of a random share of the workers are averaged every so often; all adopt the result."""

import math
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import ClassVar

from polyrhythm.core import Bounds, Cluster, Sync
from polyrhythm.errors import SpecError, UsageError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.rounds import Rounds, RoundState


@dataclass(frozen=True)
class FedAvg(Rounds):
    """Federated averaging (McMahan et al. 2017), as the SelSync paper compares with it: FedAvg(C, E).

    A round is h = max(1, round(E * D / (n * B))) local steps, with D samples of an epoch, n live workers and
    mini-batches of B, so that the workers process the share E of an epoch together. Then m = max(1, round(C * n)) of
    the workers, drawn anew in each round from (seed, round) alone, contribute w = (1/m) * sum_p w_p, and all n adopt w.
    The local steps of the others are dropped and counted as "replaced"; their samples count as processed.
    ``c=1`` with an `e` of one step is local SGD(1).

    Args:
        c: C, the share of the workers that contributes, above 0 and at most 1.
        e: E, the share of an epoch between two averages, above 0.
        seed: of the choice of contributors.

    Differs from McMahan et al. in two points: all workers train, not only those chosen, as in the SelSync paper; and
    the mean is uniform, since all do equally many steps.

    Raises:
        UsageError: from `init` if the cluster does not state `dataset_samples`.

    Example:
        >>> chosen(range(8), share=0.5, seed=0, number=0), chosen(range(8), share=0.5, seed=0, number=1)
        ((1, 3, 6, 7), (3, 5, 6, 7))
    """

    c: float = 1.0
    e: float = 0.25
    seed: int = 0

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "own replicas; a random share c is averaged every e of an epoch, all adopt it"

    def __post_init__(self) -> None:
        if not 0 < self.c <= 1:
            raise SpecError(f"c must be a share above 0 and at most 1 but got {self.c}")
        if not 0 < self.e < math.inf:
            raise SpecError(f"e must be a positive share of an epoch but got {self.e}")
        require_at_least(0, seed=self.seed)

    def init(self, cluster: Cluster) -> RoundState:
        if cluster.dataset_samples is None:
            raise UsageError(
                "policy fedavg counts its rounds in epochs, and nobody has said how many samples an epoch has; "
                "give Cluster(dataset_samples=...), or use local:h, which counts steps"
            )
        # Who goes on after a switch or a death draws others than the first rounds have drawn. The last step of an epoch
        # may be a smaller one, so steps count, and not their samples.
        epoch_steps = max(1, math.ceil(cluster.dataset_samples / (cluster.workers * cluster.batch_size)))
        steps = cluster.processed_samples * epoch_steps // max(1, cluster.dataset_samples)
        return replace(super().init(cluster), number=steps // self.steps(cluster, cluster.workers))

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the longest round, that of a single worker; a replica is never stale."""
        lead = math.inf if cluster.dataset_samples is None else self.steps(cluster, 1)
        return Bounds(lead=lead, staleness=0)

    def length(self, state: RoundState) -> int:
        return self.steps(state.cluster, state.barrier.live)

    def exchange(self, state: RoundState, workers: tuple[int, ...]) -> Sync:
        contributors = chosen(workers, self.c, self.seed, state.number)
        return Sync(contributors, "parameters", adopters=None if contributors == workers else workers)

    def steps(self, cluster: Cluster, live: int) -> int:
        assert cluster.dataset_samples is not None
        return max(1, round(self.e * cluster.dataset_samples / (max(1, live) * cluster.batch_size)))


def chosen(workers: "tuple[int, ...] | range", share: float, seed: int, number: int) -> tuple[int, ...]:
    """A random share of `workers`, at least one, in their order: a function of seed and round that every rank knows."""
    count = max(1, round(share * len(workers)))
    if count == len(workers):
        return tuple(workers)
    drawn = sorted(workers, key=lambda worker: blake2b(f"{seed}:{number}:{worker}".encode(), digest_size=8).digest())
    return tuple(sorted(drawn[:count]))
