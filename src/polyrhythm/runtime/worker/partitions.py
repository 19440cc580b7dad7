"""The shards of a session's data set."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from polyrhythm.errors import UsageError
from polyrhythm.training.data.partition import BY_LABEL, Dealt, Partition, deal, parse_partition


def dealt_to(
    partition: str, dataset: Dataset[Any], labels: Any | None, rank: int, workers: int, seed: int
) -> Dealt | None:
    """The shards of all planned workers; None if all read from one order.

    Args:
        partition: a spec, see `polyrhythm.training.data.partition`.
        dataset: has a length; where a rule reads labels and none are given, they are its `targets` or, of a
            `TensorDataset`, its last tensor.
        labels: one a sample.
        rank: of this worker.
        workers: how many are planned.
        seed: the same on every worker.

    Raises:
        UsageError: for a spec that cannot be read, labels that are missing, or a worker without a shard.
    """
    rule = parse_partition(partition)
    if type(rule) is Partition:
        return None
    if rank >= workers:
        raise UsageError(
            f"rank {rank} has no shard: partition {partition!r} deals one to each of {workers} planned workers; "
            "start it under the rank of a worker that has left"
        )
    return deal(rule, labels_of(rule, dataset, labels), workers, seed)


def labels_of(rule: Partition, dataset: Dataset[Any], labels: Any | None) -> Any:
    """One label a sample; any will do for a rule that does not read them."""
    samples = len(dataset)  # type: ignore[arg-type]
    if not isinstance(rule, BY_LABEL):
        return np.zeros(samples)
    if labels is None and isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        labels = dataset.tensors[-1]
    labels = getattr(dataset, "targets", None) if labels is None else labels
    if labels is None or len(labels) != samples:
        raise UsageError(
            f"partition {rule.name!r} reads one label a sample, and {type(dataset).__name__} has no targets; "
            f"give loader(labels=...) with {samples} of them"
        )
    return torch.as_tensor(labels).cpu()
