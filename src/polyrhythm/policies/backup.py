"""Backup workers: rounds that do not wait for the last b."""

from dataclasses import dataclass
from typing import ClassVar

from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies.k_sync import FirstArrivals


@dataclass(frozen=True)
class Backup(FirstArrivals):
    """Synchronous SGD with b backup workers (Chen et al. 2016): K-sync with K = max(1, n - b).

    n is the number of workers that are live, so a worker that dies is one backup worker fewer needed, not one fewer
    left. ``b=0`` is BSP.

    Args:
        b: how many of the live workers a round does not wait for.

    Example:
        >>> Backup(b=2).quota(live=8), Backup(b=2).quota(live=2)
        (6, 1)
    """

    b: int = 1

    name: ClassVar[str] = "backup"
    summary: ClassVar[str] = "rounds that do not wait for the last b workers"

    def __post_init__(self) -> None:
        require_at_least(0, b=self.b)

    def quota(self, live: int) -> int:
        return max(1, live - self.b)
