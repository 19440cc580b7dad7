"""What stands at the positions that a `SampleRange` names: one shuffled order for all workers, or a shard for each."""

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polyrhythm.core.shards import Shards
from polyrhythm.core.workload import SampleRange
from polyrhythm.training.data.partition import Dealt, Partition, deal, parse_partition
from polyrhythm.training.data.task import epoch_order

PASSES = 4
"""Shuffles that are kept for each shard: its worker may be ahead, and another still in the pass before."""


class SampleOrder(Protocol):
    """The order of every epoch."""

    shards: Shards | None

    def indices(self, sample_range: SampleRange) -> Tensor:
        """Samples at these positions."""


class SharedOrder:
    """One permutation of the data set an epoch.

    >>> order = SharedOrder(samples=5, seed=0)
    >>> sorted(torch.cat([order.indices(SampleRange(3, 0, 2)), order.indices(SampleRange(3, 2, 5))]).tolist())
    [0, 1, 2, 3, 4]
    """

    shards: Shards | None = None

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def indices(self, sample_range: SampleRange) -> Tensor:
        """Samples at these positions."""
        return epoch_order(self.samples, self.seed, sample_range.epoch).narrow(
            0, sample_range.start, sample_range.stop - sample_range.start
        )


class ShardedOrder:
    """The shards one behind the other, each shuffled for the epoch; a sample range lies in one of them."""

    def __init__(self, dealt: Dealt) -> None:
        self.cut = dealt.shards
        self.shards: Shards | None = self.cut
        self._shuffled = lru_cache(maxsize=PASSES * len(dealt.indices))(dealt.shuffled)

    def indices(self, sample_range: SampleRange) -> Tensor:
        """Samples at these positions."""
        shard = self.cut.shard(sample_range)
        first = self.cut.starts[shard]
        order = self._shuffled(shard, sample_range.epoch)
        return torch.from_numpy(order[sample_range.start - first : sample_range.stop - first])


def order_of(partition: str, labels: Tensor, workers: int, seed: int) -> SampleOrder:
    """The order that a configuration asks for.

    Args:
        partition: a spec, see `polyrhythm.training.data.partition`.
        labels: one a sample.
        workers: number of workers that are planned.
        seed: of everything random.

    Raises:
        UsageError: for a spec that cannot be read, or that these data do not allow.
    """
    chosen = parse_partition(partition)
    if type(chosen) is Partition:
        return SharedOrder(len(labels), seed)
    return ShardedOrder(deal(chosen, np.asarray(labels), workers, seed))
