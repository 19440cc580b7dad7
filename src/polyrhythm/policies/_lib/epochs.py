"""What is known of workers through the end of an epoch.

There each of them leaves as "finished". With the next epoch they come back, all in one event, and what was learned of
them still holds. Who does not come back with the others is gone: nobody tells, because it was not live.
"""

from typing import Any, TypeVar

from polyrhythm.core import Joined, Left
from polyrhythm.core.worker_map import WorkerMap

Known = TypeVar("Known")


def still_known(known: WorkerMap[Known], event: Joined | Left) -> WorkerMap[Known]:
    """What holds of what is known of live workers, and of those that have finished, after one of these events.

    >>> known = WorkerMap().set(0, "a").set(1, "b")
    >>> list(still_known(known, Left(0, 1.0, 4, "finished"))), list(still_known(known, Left(0, 1.0, 4, "died")))
    ([0, 1], [1])
    >>> list(still_known(known, Joined((0, 2), 2.0))), list(still_known(known, Joined((2,), 2.0)))
    ([0], [0, 1])
    """
    for worker in gone(known, event):
        known = known.remove(worker)
    return known


def gone(known: WorkerMap[Any], event: Joined | Left) -> list[int]:
    """Whom this event shows to be gone; `known` has all of whom anything is known."""
    if isinstance(event, Left):
        return [] if event.reason == "finished" else [event.worker]
    back = any(worker in known for worker in event.workers)
    return sorted(set(known).difference(event.workers)) if back else []
