"""What stands at the positions that a `Lease` names: one shuffled order for all workers, or a shard for each."""

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polyrhythm.core.shards import Shards
from polyrhythm.core.workload import Lease
from polyrhythm.training.data import epoch_order
from polyrhythm.training.partition import Dealt, Partition, deal, parse_partition

PASSES = 4
"""Shuffles that are kept for each shard: its worker may be ahead, and another still in the pass before."""


class Order(Protocol):
    """The order of every epoch."""

    shards: Shards | None

    def indices(self, lease: Lease) -> Tensor:
        """Samples at these positions."""


class SharedOrder:
    """One permutation of the data set an epoch.

    >>> order = SharedOrder(samples=5, seed=0)
    >>> sorted(torch.cat([order.indices(Lease(3, 0, 2)), order.indices(Lease(3, 2, 5))]).tolist())
    [0, 1, 2, 3, 4]
    """

    shards: Shards | None = None

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def indices(self, lease: Lease) -> Tensor:
        """Samples at these positions."""
        return epoch_order(self.samples, self.seed, lease.epoch).narrow(0, lease.start, lease.stop - lease.start)


class ShardedOrder:
    """The shards one behind the other, each shuffled for the epoch; a lease lies in one of them."""

    def __init__(self, dealt: Dealt) -> None:
        self.cut = dealt.shards
        self.shards: Shards | None = self.cut
        self._shuffled = lru_cache(maxsize=PASSES * len(dealt.indices))(dealt.shuffled)

    def indices(self, lease: Lease) -> Tensor:
        """Samples at these positions."""
        shard = self.cut.shard(lease)
        first = self.cut.starts[shard]
        order = self._shuffled(shard, lease.epoch)
        return torch.from_numpy(order[lease.start - first : lease.stop - first])


def order_of(partition: str, labels: Tensor, workers: int, seed: int) -> Order:
    """The order that a configuration asks for.

    Args:
        partition: a spec, see `polyrhythm.training.partition`.
        labels: one a sample.
        workers: number of workers that are planned.
        seed: of everything random.

    Raises:
        UsageError: for a spec that cannot be read, or that these data do not allow.
    """
    rule = parse_partition(partition)
    if type(rule) is Partition:
        return SharedOrder(len(labels), seed)
    return ShardedOrder(deal(rule, np.asarray(labels), workers, seed))
