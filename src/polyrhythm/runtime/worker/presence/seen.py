"""Which positions a worker in local-step mode has processed, and which of these it has exchanged with all others."""

from collections import deque

from polyrhythm.core.epoch_plan import joined
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.wire.protocol import TakePart

JOINED_AT = 256
"""Ranges after which neighbours are made one."""


class SeenRanges:
    """Follows the sample ranges of one phase, as the coordinator does.

    Args:
        rank: of the worker.

    Example:
        >>> from polyrhythm.core import Sync
        >>> seen = SeenRanges(rank=0)
        >>> for start in (0, 4, 8):
        ...     seen.draw(SampleRange(0, start, start + 4))
        >>> seen.step(made=True)
        >>> seen.offer(TakePart(1, Sync((0, 1), "deltas")))
        >>> seen.step(made=True)
        >>> seen.merge(1)
        >>> seen.told.offers, seen.told.alone, seen.told.merges
        (((1, (SampleRange(epoch=0, start=0, stop=4),)),), (SampleRange(epoch=0, start=4, stop=8),), 1)
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._drawn: deque[SampleRange] = deque()
        self._alone: list[SampleRange] = []
        self._offers: dict[int, list[SampleRange]] = {}
        self._processed: list[SampleRange] = []
        self._merges, self._epoch = 0, -1

    def draw(self, sample_range: SampleRange) -> None:
        if sample_range.epoch > self._epoch:  # the one before is over for all
            self._epoch = sample_range.epoch
            self._processed.clear()
        self._drawn.append(sample_range)

    def step(self, made: bool) -> None:
        """The step on the oldest that is drawn is over; if it was not `made`, others get its positions."""
        if self._drawn:
            sample_range = self._drawn.popleft()
            if made:
                self._alone.append(sample_range)

    def offer(self, merge: TakePart) -> None:
        """An exchange begins, perhaps without this worker's part."""
        sync = merge.sync
        if self._rank in {*sync.workers, *(sync.adopters or ())}:
            self._offers[merge.number], self._alone = self._alone, []

    def merge(self, number: int) -> None:
        """That exchange is complete."""
        self._processed += self._offers.pop(self._merges, [])
        self._merges = number
        if len(self._processed) > JOINED_AT:
            self._processed = list(joined(sorted(self._processed)))

    def halt(self) -> None:
        """What was granted and not processed is for others."""
        self._drawn.clear()

    @property
    def told(self) -> Returned:
        """What a coordinator must know that has not followed it."""
        offers = tuple((number, tuple(ranges)) for number, ranges in self._offers.items())
        seen = tuple(self._processed), offers, tuple(self._alone)
        return Returned(merges=self._merges, processed=seen[0], offers=seen[1], alone=seen[2])
