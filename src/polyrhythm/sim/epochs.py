"""Epochs whose end is a meeting point of all workers, as it is for real ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polyrhythm.core.workload import SampleRange, Workload, divide, even_share


@dataclass(slots=True)
class MeetingWorkload(Workload):
    """A queue of mini-batches that hands out those of one epoch until the next one is opened.

    Args:
        even: whether all who are there make as many steps in an epoch, as in synchronous mode, and share the last one
            out.
        opened: epochs that are open.

    Example:
        >>> work = MeetingWorkload(dataset_samples=5, total_samples=8)
        >>> [work.hand_out(3) for _ in range(3)]
        [SampleRange(epoch=0, start=0, stop=3), SampleRange(epoch=0, start=3, stop=5), None]
        >>> work.open_next()
        >>> work.hand_out(3), work.left
        (SampleRange(epoch=1, start=0, stop=3), 0)
        >>> work = MeetingWorkload(dataset_samples=9, total_samples=9, even=True)
        >>> work.join((0, 1))
        >>> [sample_range.samples if (sample_range := work.hand_out(3, worker)) else 0 for worker in (0, 0, 0, 1, 1)]
        [3, 2, 0, 3, 1]
    """

    even: bool = False
    opened: int = 1
    members: set[int] = field(default_factory=set)
    steps: Counter[int] = field(default_factory=Counter)
    planned_from: int = 0
    shared_out: dict[int, int] = field(default_factory=dict)
    unplanned: bool = False

    def hand_out(self, samples: int, worker: int = 0) -> SampleRange | None:
        """The next mini-batch of at most `samples` of the open epochs."""
        share = self.shared_out.pop(worker, None)
        if not self.returned:
            if share is None:
                share = self._share(samples, worker) if self.even else samples
            samples = min(share, self._end - self.handed_out)
        return Workload.hand_out(self, samples, worker) if samples > 0 else None

    def share_out(self, workers: Sequence[int], shares: Sequence[int]) -> None:
        """A round in unequal shares; if less than a sample for each would be left after it, it is the last."""
        left = self._end - self.handed_out
        last = self.even and len(workers) <= left < sum(shares) + len(workers)
        self.shared_out = dict(zip(workers, divide(left, shares) if last else shares, strict=True))
        self.unplanned = True

    def join(self, workers: Iterable[int]) -> None:
        self.members.update(workers)
        self._plan()

    def leave(self, worker: int) -> None:
        self.members.discard(worker)
        self._plan()

    def open_next(self) -> None:
        """All workers stand at the end of an epoch: the next one begins."""
        self.opened += 1
        self._plan()

    @property
    def _end(self) -> int:
        return min(self.opened * self.dataset_samples, self.total_samples)

    def _plan(self) -> None:
        self.steps.clear()
        self.planned_from, self.unplanned = self.handed_out, False

    def _share(self, samples: int, worker: int) -> int:
        """Samples of a worker's next step: a whole mini-batch, its part of the rest, or none."""
        if self.unplanned:  # rounds in unequal shares have come between
            self._plan()
        step, index = self.steps[worker], sorted(self.members).index(worker)
        self.steps[worker] += 1
        return even_share(self._end - self.planned_from, len(self.members), samples, step, index)
