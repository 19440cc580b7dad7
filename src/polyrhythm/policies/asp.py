"""Asynchronous parallel: nobody waits."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy, Proceed, Report, Sync, Traits


@dataclass(frozen=True)
class ASP(Policy[None]):
    """Asynchronous parallel: apply each gradient when it arrives and let its worker go on at once.

    A gradient may be arbitrarily stale; see the delay compensations of `polyrhythm.training`.

    Example:
        >>> from polyrhythm.core import Report
        >>> ASP().decide(None, Report(worker=3, clock=1, time_s=1.0))[1] == (Sync((3,)), Proceed((3,)))
        True
    """

    name: ClassVar[str] = "asp"
    summary: ClassVar[str] = "nobody waits; gradients may be stale"
    traits: ClassVar[Traits] = Traits(reads_early=True)

    def init(self, cluster: Cluster) -> None:
        return None

    def decide(self, state: None, event: Event) -> tuple[None, Decisions]:
        match event:
            case Report(worker=worker):
                return state, step_and_go_on(worker)
            case Joined(workers=workers):
                return state, (Proceed(workers),)
            case _:
                return state, ()


@lru_cache(maxsize=4096)
def step_and_go_on(worker: int) -> Decisions:
    """What follows every report; made once, because it is made for every push."""
    return Sync((worker,)), Proceed((worker,))
