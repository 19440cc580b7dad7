"""How many live workers stand at which clock, as a frozen value: what the bounded-staleness rules compare."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockCounts:
    """Counts by clock, ascending, without zeros; there are never more entries than live workers.

    >>> counts = ClockCounts().add(0, 2).advance(1)
    >>> counts, counts.minimum
    (ClockCounts(counts=((0, 1), (1, 1))), 0)
    """

    counts: tuple[tuple[int, int], ...] = ()

    @property
    def minimum(self) -> int:
        """Smallest clock of a live worker; 0 when there is none."""
        return self.counts[0][0] if self.counts else 0

    @property
    def maximum(self) -> int:
        """Largest clock of a live worker; 0 when there is none."""
        return self.counts[-1][0] if self.counts else 0

    def add(self, clock: int, workers: int = 1) -> "ClockCounts":
        """With so many more workers at `clock`."""
        return self._shifted({clock: workers})

    def remove(self, clock: int) -> "ClockCounts":
        """With one worker fewer at `clock`."""
        return self._shifted({clock: -1})

    def advance(self, clock: int) -> "ClockCounts":
        """With one worker moved from ``clock - 1`` to `clock`."""
        return self._shifted({clock - 1: -1, clock: 1})

    def _shifted(self, changes: dict[int, int]) -> "ClockCounts":
        counts = dict(self.counts)
        for clock, change in changes.items():
            counts[clock] = counts.get(clock, 0) + change
        return ClockCounts(tuple(sorted(item for item in counts.items() if item[1])))
