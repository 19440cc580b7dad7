"""Workers that have died are started again by the launcher of their host, and join the job where it is."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from polyrhythm.errors import BROKEN, REFUSED
from polyrhythm.runtime.launch.forked import RunningProcess
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.training.divergence import DIVERGED

ENDS = (0, LEFT, BROKEN, REFUSED, DIVERGED)
"""Exit statuses after which a new process would do no better."""

FAILED = 1
"""Exit status of a worker that has failed by itself, and of a job that has."""

JOINED = "POLYRHYTHM_JOINED"
"""Environment variable of a worker with a file of those that have joined their job."""

STATUSES = "POLYRHYTHM_STATUSES"
"""Environment variable of a worker with a file of exit statuses that have our meaning; others are the script's own."""

COUNT, MOST = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"

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
        self._newest: dict[int, int] = {}

    @property
    def to_join(self) -> set[int]:
        """Workers that were started again, and have not joined the job since."""
        joined = read_joined()
        return {rank for rank, count in self._newest.items() if (rank, count) not in joined}

    def allow(self, rank: int, code: int) -> bool:
        return code not in ENDS and self.made < self.most

    def again(self, rank: int, code: int) -> RunningProcess:
        self.made += 1
        self._newest[rank] = self.made
        self._codes.setdefault(rank, code)
        return self._start(rank, self.made)

    def first_code(self, rank: int, code: int) -> int:
        """What counts for the job: of one that was started again and failed, how it had ended first."""
        return self._codes.get(rank, code) if code not in (0, LEFT) else code

    def is_ours(self, local_rank: int, rank: int, code: int) -> bool:
        """Whether a worker has ended so because we have it so; it has said why."""
        return (local_rank, self._newest.get(rank, 0), code) in read_statuses()

    def is_ending(self, local_rank: int, rank: int) -> bool:
        """Whether a worker has announced how it ends: it has left the job, though its process may go on for a time."""
        return any(told[:2] == (local_rank, self._newest.get(rank, 0)) for told in read_statuses())

    def meaning(self, local_rank: int, rank: int, code: int) -> int:
        """The exit status of a worker; that of a script that has ended itself with one of ours is only a failure."""
        return FAILED if code in ENDS[1:] and not self.is_ours(local_rank, rank, code) else code


def tell_joined(rank: int) -> None:
    """This worker is part of its job from now on."""
    with suppress(KeyError, OSError), open(os.environ[JOINED], "a", encoding="ascii") as joined:
        joined.write(f"{rank} {os.environ.get(COUNT, '0')}\n")


def read_joined() -> set[tuple[int, int]]:
    """Ranks, and how often a worker had been started again on this host when they joined."""
    try:
        with open(os.environ[JOINED], encoding="ascii") as joined:
            return {(int(rank), int(count)) for rank, count in map(str.split, joined)}
    except KeyError:
        return set()


def tell_status(code: int) -> int:
    """This worker is about to end with an exit status that has our meaning, which is returned."""
    with suppress(KeyError, OSError), open(os.environ[STATUSES], "a", encoding="ascii") as statuses:
        statuses.write(f"{os.environ['LOCAL_RANK']} {os.environ.get(COUNT, '0')} {code}\n")
    return code


def read_statuses() -> set[tuple[int, int, int]]:
    """Local ranks, how often a worker had been started again, and the exit status that it has announced."""
    try:
        with open(os.environ[STATUSES], encoding="ascii") as statuses:
            return {(int(local), int(count), int(code)) for local, count, code in map(str.split, statuses)}
    except KeyError:
        return set()


def asked_for(environment: Mapping[str, str]) -> int:
    """How often the launcher that has started this worker starts workers again.

    >>> asked_for({MOST: "3"}), asked_for({MOST: "3", JOINED: "/proc/7/fd/8"})
    (0, 3)
    """
    return int(environment.get(MOST, "0")) if JOINED in environment else 0
