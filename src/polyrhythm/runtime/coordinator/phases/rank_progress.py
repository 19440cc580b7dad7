"""How far one rank is in the steps of a synchronous phase, as the coordinator knows it."""

from collections import deque
from dataclasses import dataclass, field

from polyrhythm.runtime.wire.protocol import Stepped


@dataclass(slots=True)
class RankProgress:
    """One rank: steps that it has completed, how far and which by themselves it has exchanged with all, those that the
    policy has not seen yet with their times, and whether it stands still.
    """

    completed: int = 0
    exchanged: int = 0
    shared: set[int] = field(default_factory=set)
    unseen: deque[tuple[float, Stepped]] = field(default_factory=deque)
    collective_failed: bool = False
    started: int = 0
