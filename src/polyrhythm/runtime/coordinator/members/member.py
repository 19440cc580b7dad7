"""One worker of a job, as the coordinator knows it, and what is kept of several."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import AtEnd, Ready

Ranks: TypeAlias = tuple[int, ...]

MemberOffers: TypeAlias = tuple[tuple[int, tuple[SampleRange, ...]], ...]
"""What a worker puts into exchanges that not all have completed, with their numbers."""

Offers: TypeAlias = dict[int, MemberOffers]
"""The same of each worker."""

GONE: Final = -1
"""In the place of a member that a phase has lost: its rank may come back, and is no member then."""

WORDS = {"finished": "has finished", "died": "died", "hung": "hangs", "removed": "left early"}
"""How the log calls the ways in which a worker can leave."""


def without(worker: int, ranks: Ranks) -> Ranks:
    """With `GONE` in a worker's place.

    >>> without(1, (0, 1, 2))
    (0, -1, 2)
    """
    return tuple(GONE if rank == worker else rank for rank in ranks)


@dataclass(slots=True)
class Member:
    """One live worker."""

    ready: Ready | None = None
    step: int | None = None
    """The one in flight."""
    granted: int = -1
    """The last step that it was given."""
    sample_ranges: deque[SampleRange] = field(default_factory=deque)
    """Granted to it and not yet processed, oldest first."""
    read_version: int = 0
    at_end: bool = False
    early: bool = False
    """Whether it has left its loop and wants nothing of what is left."""
    away: int = -1
    """The epoch after which it waited outside while others stood before the next."""
    outside: AtEnd | None = None
    """What it has said last while it waited there."""
    batch_size: int | None = None
    """What a policy has set; None is what the worker asked for."""
    leaving: Literal["", "asks", "may"] = ""
    """Whether it is to leave, and waits until all stand, or may do so now."""
    out: bool = False
    """Whether it has no data of its own left for steps that all make together, and waits for the end of the epoch."""

    def stand_at_end(self, early: bool) -> None:
        """No step is to come in this epoch; `early`, the script wants none of those that it could make."""
        self.at_end, self.early = True, early
