"""What is known of workers through the end of an epoch.

There each of them leaves as "finished". With the next epoch they come back, all in one event while nobody is live, and
what was learned of them still holds. Who does not come back with the others is gone: nobody tells, because it was not
live. Who comes while others are live is new, also if one of its number has finished: that one has died since.
"""

from typing import Any, TypeVar

from polyrhythm.core import Joined, Left
from polyrhythm.core.worker_map import WorkerMap

Known = TypeVar("Known")


def still_known(known: WorkerMap[Known], event: Joined | Left, live: int) -> WorkerMap[Known]:
    """What holds of what is known of live workers, and of those that have finished, after one of these events.

    Args:
        known: by worker.
        event: what has happened.
        live: how many workers were live before.

    >>> known = WorkerMap().set(0, "a").set(1, "b")
    >>> [list(still_known(known, Left(0, 1.0, 4, reason), live=2)) for reason in ("finished", "died")]
    [[0, 1], [1]]
    >>> [list(still_known(known, Joined(workers, 2.0), live)) for workers in ((0, 2), (2,)) for live in (0, 1)]
    [[0], [1], [0, 1], [0, 1]]
    """
    for worker in gone(known, event, live):
        known = known.remove(worker)
    return known


def gone(known: WorkerMap[Any], event: Joined | Left, live: int) -> list[int]:
    """Of whom nothing holds any more after this event; `known` has all of whom anything is known."""
    if isinstance(event, Left):
        return [] if event.reason == "finished" else [event.worker]
    back = [worker for worker in event.workers if worker in known]
    return back if live else sorted(set(known).difference(event.workers)) if back else []
