"""Workers that have died are started again by the launcher of their host, and join the job where it is."""

from collections.abc import Callable

from polyrhythm.errors import BROKEN, REFUSED
from polyrhythm.runtime.launch.forked import RunningProcess
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.training.divergence import DIVERGED

ENDS = (0, LEFT, BROKEN, REFUSED, DIVERGED)
"""Exit statuses after which a new process would do no better."""

StartAgain = Callable[[int, int], RunningProcess]
"""Starts the worker of a rank, for the so-many-th time after the first."""


class Restarts:
    """How often workers are started again, and with what they had ended before.

    Args:
        most: restarts of this host, of all its workers together.
        start: see `StartAgain`.

    Example:
        >>> restarts = Restarts(1, lambda rank, count: print("rank", rank, "again:", count))
        >>> restarts.allow(2, -9), restarts.allow(2, 0)
        (True, False)
        >>> restarts.again(2, -9)
        rank 2 again: 1
        >>> restarts.allow(2, -9), restarts.first_code(2, 1), restarts.first_code(2, 0)
        (False, -9, 0)
    """

    def __init__(self, most: int, start: StartAgain) -> None:
        self.most, self.made = most, 0
        self._start = start
        self._codes: dict[int, int] = {}

    @property
    def ranks(self) -> set[int]:
        """Of workers that were started again."""
        return {*self._codes}

    def allow(self, rank: int, code: int) -> bool:
        """Whether a worker that has ended so is started again."""
        return code not in ENDS and self.made < self.most

    def again(self, rank: int, code: int) -> RunningProcess:
        """The new process."""
        self.made += 1
        self._codes.setdefault(rank, code)
        return self._start(rank, self.made)

    def first_code(self, rank: int, code: int) -> int:
        """What counts for the job: of one that was started again and failed, how it had ended first."""
        return self._codes.get(rank, code) if code not in (0, LEFT) else code
