"""How far one rank is in the steps of a synchronous phase, as the coordinator knows it."""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from polyrhythm.core import Ledger
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import CollectiveFailed, Stepped


@dataclass(slots=True)
class RankProgress:
    """One rank: steps that it has completed, how far and which by themselves it has exchanged with all, those that
    its script skipped, those that the policy has not seen yet with their times, and whether it stands still.
    """

    completed: int = 0
    exchanged: int = 0
    shared: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    unseen: deque[tuple[float, Stepped]] = field(default_factory=deque)
    collective_failed: bool = False
    started: int = 0

    def complete(self, message: Stepped, time_s: float) -> None:
        self.completed += 1
        self.unseen.append((time_s, message))
        if message.skipped:
            self.skipped.add(message.step)

    def exchange(self, message: Stepped | CollectiveFailed, step: int) -> None:
        """What the rank says after this step."""
        self.exchanged = max(self.exchanged, message.exchanged)
        if message.shared:
            self.shared.add(step)


class StepOrder:
    """The steps of all ranks in the order in which they were made, as far as nothing can be missing.

    Args:
        progress: of each rank.
        lost: ranks that are gone, for whose steps nobody waits.
        ledger: which ranks are within a step.
    """

    def __init__(self, progress: Mapping[int, RankProgress], lost: Container[int], ledger: Ledger) -> None:
        self._progress, self._lost, self._accounts = progress, lost, ledger.accounts
        self._awaited = -1
        """The rank without which nothing could be said last."""
        self._begun: list[int] | None = None

    def due(self) -> Iterator[int]:
        """Ranks whose next step can be shown now, each of which is shown before the next is asked for."""
        heads: list[tuple[float, int]] = []
        if self._is_missing(self._awaited):
            return
        for worker in self._accounts:
            if not self._add(heads, worker):
                return
        while heads:
            worker = heapq.heappop(heads)[1]
            if self._is_running(worker):
                begun: list[int] = []
                self._begun = begun
                yield worker
                self._begun = None
                if not all([self._add(heads, other) for other in begun]):  # noqa: C419 (a rank waits for all of them)
                    return

    def began(self, worker: int) -> None:
        """This rank has begun another step."""
        if self._begun is not None:
            self._begun.append(worker)

    def _add(self, heads: list[tuple[float, int]], worker: int) -> bool:
        """Add the next step of a rank, if it is within one; False if that has still to be heard of."""
        if not self._is_running(worker):
            return True
        if unseen := self._progress[worker].unseen:
            heapq.heappush(heads, (unseen[0][0], worker))
        elif worker not in self._lost:
            self._awaited = worker
            return False
        return True

    def _is_running(self, worker: int) -> bool:
        account = self._accounts.get(worker)
        return account is not None and account.running is not None

    def _is_missing(self, worker: int) -> bool:
        return self._is_running(worker) and worker not in self._lost and not self._progress[worker].unseen


def count_samples(sample_ranges: Iterable[SampleRange]) -> int:
    return sum(sample_range.samples for sample_range in sample_ranges)
