"""In which epoch of a job a script is that comes late: its loop may go on from a snapshot, and says so by a number."""

import os

from polyrhythm.runtime.launch.restarts import asked_for
from polyrhythm.runtime.script.notices import refuse, tell

UNNUMBERED = (
    "no loop over epochs says by a number where the script goes on from its snapshot; count them in one variable with "
    "'epoch' in its name"
)


def place_beside_others(seen: int, number: int | None, counted_from: int) -> tuple[int, int]:
    """The epoch of a job that is under way, and what its scripts call its first.

    >>> place_beside_others(seen=0, number=5, counted_from=3)
    (2, 3)

    Args:
        seen: epochs that the script has gone through in this process.
        number: what it calls the epoch at hand, if that can be told.
        counted_from: what the others call the job's first.

    Raises:
        RefusalError: if it is in none of these.
    """
    if number is None:
        raise refuse(f"this process comes to a job that is under way and has loaded parameters, but {UNNUMBERED}")
    if number - seen < counted_from:
        raise refuse(
            f"its loop begins with epoch {number - seen}, and that of the job with epoch {counted_from}; give it the "
            "job's snapshot"
        )
    return number - counted_from, counted_from


def tell_unplaced() -> None:
    """A script does not say by a number in which epoch it is: a later process of it could not, either."""
    if asked_for(os.environ):
        refused = "a worker that is started again (--max-restarts) will be refused if it has loaded parameters"
        tell(f"{refused}, as {UNNUMBERED}")
