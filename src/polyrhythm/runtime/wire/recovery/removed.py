"""Ranks that somebody has removed from a job: they stay away, although workers that die may be started again.

Their launcher has a file of them, which outlives a coordinator. Where somebody else starts workers there is none.
"""

import os
from contextlib import suppress

from polyrhythm.errors import UsageError

REMOVED = "POLYRHYTHM_REMOVED"
"""Environment variable of a coordinator with that file."""


def tell_removed(rank: int) -> None:
    """Before its process is ended."""
    with suppress(KeyError, OSError), open(os.environ[REMOVED], "a", encoding="ascii") as removed:
        removed.write(f"{rank}\n")


def is_removed(rank: int) -> bool:
    try:
        with open(os.environ[REMOVED], encoding="ascii") as removed:
            return rank in map(int, removed)
    except KeyError:
        return False


def check_not_removed(rank: int) -> None:
    """The launcher of another host than the coordinator's may have started it again.

    Raises:
        UsageError: if it was removed.
    """
    if is_removed(rank):
        raise UsageError(f"rank {rank} was removed from this job, and stays away")
