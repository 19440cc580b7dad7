"""Which live workers stand at which clock, as frozen values: what the bounded-staleness policies compare."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from polyrhythm.core.worker_map import WorkerMap


@dataclass(frozen=True, slots=True)
class ClockCounts:
    """How many workers stand at each clock, ascending, without zeros.

    >>> counts = ClockCounts().add(0, 2).advance(1)
    >>> counts, counts.minimum
    (ClockCounts(counts=((0, 1), (1, 1))), 0)
    """

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def minimum(self) -> int:
        return self.counts[0][0] if self.counts else 0

    def add(self, clock: int, workers: int = 1) -> "ClockCounts":
        return self._shifted({clock: workers})

    def remove(self, clock: int) -> "ClockCounts":
        return self._shifted({clock: -1})

    def advance(self, clock: int) -> "ClockCounts":
        return self._shifted({clock - 1: -1, clock: 1})

    def _shifted(self, changes: dict[int, int]) -> "ClockCounts":
        counts = dict(self.counts)
        for clock, change in changes.items():
            counts[clock] = counts.get(clock, 0) + change
        return ClockCounts(tuple(sorted(item for item in counts.items() if item[1])))


@dataclass(frozen=True, slots=True)
class ClockGroups:
    """The workers that stand at each clock, ascending, without empty groups.

    >>> groups = ClockGroups().add(0, [4, 7]).move(4, 1)
    >>> groups.minimum, groups.maximum, groups.first, groups.up_to(1)
    (0, 1, 7, (7, 4))
    """

    groups: tuple[tuple[int, WorkerMap[bool]], ...] = ()

    @property
    def minimum(self) -> int:
        return self.groups[0][0] if self.groups else 0

    @property
    def maximum(self) -> int:
        return self.groups[-1][0] if self.groups else 0

    @property
    def first(self) -> int:
        return next(iter(self.groups[0][1]))

    def add(self, clock: int, workers: Iterable[int]) -> "ClockGroups":
        at, group = self._find(clock)
        return self._replaced(at, bool(group), clock, group.set_all(workers, True))

    def remove(self, clock: int, worker: int) -> "ClockGroups":
        at, group = self._find(clock)
        return self._replaced(at, bool(group), clock, group.remove(worker))

    def move(self, worker: int, clock: int) -> "ClockGroups":
        return self.remove(clock - 1, worker).add(clock, (worker,))

    def up_to(self, clock: int) -> tuple[int, ...]:
        return tuple(worker for at, group in self.groups if at <= clock for worker in group)

    def above(self, clock: int) -> "ClockGroups":
        return ClockGroups(tuple(item for item in self.groups if item[0] > clock))

    def _find(self, clock: int) -> tuple[int, WorkerMap[bool]]:
        at = bisect_left(self.groups, clock, key=lambda item: item[0])
        found = at < len(self.groups) and self.groups[at][0] == clock
        return at, self.groups[at][1] if found else WorkerMap()

    def _replaced(self, at: int, found: bool, clock: int, group: WorkerMap[bool]) -> "ClockGroups":
        middle = ((clock, group),) if group else ()
        return ClockGroups(self.groups[:at] + middle + self.groups[at + found :])
