"""Partitions as samplers of `torch.utils.data`, for loops that do without a session."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from polyrhythm.errors import UsageError
from polyrhythm.training.data.partition import Dealt, Indices, Partition, deal, parse_partition, redealt


class PartitionSampler(Sampler[int]):
    """What one worker reads in an epoch, in order; the workers' samplers together give every sample once.

    Iterating gives the rest of the present epoch and then stands before the next one. A `DataLoader` may fetch ahead,
    so where the loop stands is for it to say: `state_dict` and `repartition` take the samples that it has read.

    Args:
        labels: one a sample.
        partition: a spec, see `polyrhythm.training.data.partition`; not ``shared``.
        worker: which of the workers this is, from 0.
        workers: how many there are.
        seed: the same on every worker.

    Example:
        >>> samplers = [PartitionSampler([0, 0, 1, 1, 1], "seldp", worker, workers=2) for worker in range(2)]
        >>> sorted(index for sampler in samplers for index in sampler), samplers[0].epoch
        ([0, 1, 2, 3, 4], 1)
        >>> first = next(iter(samplers[1]))
        >>> samplers[0].load_state_dict(samplers[1].state_dict(read=1))
        >>> len(samplers[1]), len(samplers[0])
        (3, 1)

    Raises:
        UsageError: for a spec that cannot be read, or that these data do not allow.
    """

    def __init__(self, labels: Any, partition: str, worker: int, workers: int, seed: int = 0) -> None:
        self._partition = parse_partition(partition)
        if type(self._partition) is Partition:
            raise UsageError("partition 'shared' deals no shards; use torch's DistributedSampler for it")
        check_worker(worker, workers)
        self._labels, self._spec, self._seed = np.asarray(labels), partition, seed
        self.worker, self.workers, self.epoch = worker, workers, 0
        self._read = 0
        self._orders: list[Indices] | None = None
        self._changes: list[dict[str, Any]] = []
        self._ended: dict[str, Any] | None = None
        self._dealt = self._deal(workers)

    def __iter__(self) -> Iterator[int]:
        self._ended = None
        order, first = self._order(), self._read
        yield from (int(index) for index in order[first:])
        ended = self._state()
        self.set_epoch(self.epoch + 1)
        self._ended = ended  # a loader may be here long before its loop

    def __len__(self) -> int:
        """Samples that are left of the present epoch."""
        return len(self._order()) - self._read

    def set_epoch(self, epoch: int) -> None:
        """Stand before an epoch; only needed to skip or to repeat one."""
        self.epoch, self._read = epoch, 0
        self._orders, self._changes, self._ended = None, [], None

    def state_dict(self, read: int) -> dict[str, Any]:
        """What a checkpoint needs to go on in the middle of an epoch.

        Args:
            read: samples that the loop has had since it last started, also if its loader has fetched the last ones of
                the epoch already; 0 between epochs.
        """
        state = self._ended if read and self._ended else self._state()
        return {**state, "read": state["read"] + read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` stood, on the same worker.

        Raises:
            UsageError: for the state of another partition, or of fewer workers.
        """
        if (theirs := named(state)) != (ours := named(self._state())):
            raise UsageError(f"the state is {theirs} but this is {ours}")
        if self.worker >= state["workers"]:
            raise UsageError(
                f"the state is of {state['workers']} workers but this is worker {self.worker}; load it on these, and "
                "call repartition"
            )
        self.workers = state["changes"][0]["workers"] if state["changes"] else state["workers"]
        self._dealt = self._deal(self.workers)
        self.set_epoch(state["epoch"])
        for change in state["changes"]:
            self._change(change)
        self._read = state["read"]

    def repartition(
        self, members: Sequence[int | None], read: Sequence[int], worker: int, epoch: int | None = None
    ) -> None:
        """Other workers from now on, in the middle of an epoch; every worker calls it with the same arguments.

        For the rest of the epoch each worker keeps what it has not read, and the rest of those that have left is dealt
        among all (see `redealt`); with the next epoch the data set is cut anew.

        Args:
            members: for each new worker, which of the old ones it was, or None if it is new.
            read: samples of the epoch that each old worker has read since the last call or the epoch's start.
            worker: which of the new workers this is.
            epoch: that the loops are in. None is this sampler's own: the one that its loader has ended ahead of its
                loop, if anyone has read of an epoch. Name it where some workers may have begun the next already.

        Raises:
            UsageError: for arguments that would lose or double samples, or workers that the partition does not
                allow.
        """
        check_worker(worker, len(members))
        if self._ended and (any(read) if epoch is None else epoch == self._ended["epoch"]):
            self.load_state_dict(self._ended)
        if epoch not in (None, self.epoch):
            raise UsageError(f"epoch must be {self.epoch}, where this worker's sampler stands, but got {epoch}")
        self._change({"workers": self.workers, "members": list(members), "read": list(read)})
        self.worker = worker

    def _change(self, change: dict[str, Any]) -> None:
        orders = self._all_orders()
        check_change(change["members"], change["read"], [len(order) for order in orders])
        dealt = self._deal(len(change["members"]))
        self._orders = redealt(orders, change["read"], change["members"])
        self._changes = [*self._changes, change]
        self.workers, self._read, self._dealt, self._ended = len(change["members"]), 0, dealt, None

    def _deal(self, workers: int) -> Dealt:
        return deal(self._partition, self._labels, workers, self._seed)

    def _state(self) -> dict[str, Any]:
        """As `state_dict` before anything more is read."""
        return {
            "epoch": self.epoch,
            "read": self._read,
            "partition": self._spec,
            "seed": self._seed,
            "samples": len(self._labels),
            "workers": self.workers,
            "changes": self._changes,
        }

    def _all_orders(self) -> list[Indices]:
        return self._orders or [self._dealt.order(worker, self.epoch) for worker in range(self.workers)]

    def _order(self) -> Indices:
        return self._orders[self.worker] if self._orders else self._dealt.order(self.worker, self.epoch)


def named(state: Mapping[str, Any]) -> str:
    """What the samples of a state are and how they are cut."""
    return f"of partition {state.get('partition')!r}, seed {state.get('seed')}, {state.get('samples')} samples"


def check_worker(worker: int, workers: int) -> None:
    """It is one of so many."""
    if not 0 <= worker < workers:
        raise UsageError(f"worker must be in [0, {workers}), the number of workers, but got {worker}")


def check_change(members: Sequence[int | None], read: Sequence[int], sizes: Sequence[int]) -> None:
    """Each worker of an epoch goes on as one at most, and has read no more than it was to read."""
    old = [member for member in members if member is not None]
    if len({*old}) < len(old) or not {*old} <= {*range(len(sizes))}:
        raise UsageError(
            f"members must name each of workers 0 to {len(sizes) - 1} at most once but got {list(members)}"
        )
    if len(read) != len(sizes) or not all(0 <= count <= size for count, size in zip(read, sizes, strict=True)):
        raise UsageError(f"read must have 0 to {list(sizes)} samples of the epoch, by worker, but got {list(read)}")
