"""BSP that gives its workers other shares in every round."""

import random
from dataclasses import replace
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Decisions, Event, Proceed, Report, Sync, Traits
from polyrhythm.policies import BSP, Balanced


class Restless(BSP):
    """Its shares follow from the clocks alone; every third round has equal ones."""

    summary: ClassVar[str] = "shares at random"
    traits: ClassVar[Traits] = Balanced.traits

    def init(self, cluster: Cluster) -> Any:
        return cluster.batch_size, super().init(cluster)

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        batch_size, barrier = state
        barrier, decisions = super().decide(barrier, event)
        clock = event.clock if isinstance(event, Report) else 0
        return (batch_size, barrier), tuple(dealt(decision, batch_size, clock) for decision in decisions)


def dealt(decision: Any, batch_size: int, clock: int) -> Any:
    if isinstance(decision, Sync) or clock % 3 == 2:
        return decision
    return replace(decision, shares=shares_of(len(decision.workers), batch_size, clock))


def shares_of(workers: int, batch_size: int, clock: int) -> tuple[int, ...]:
    """Whole numbers of at least 1 that add up."""
    draw, shares = random.Random(clock), [1] * workers
    for _ in range(workers * (batch_size - 1)):
        shares[draw.randrange(workers)] += 1
    return tuple(shares)


def unequal(decision: Any) -> bool:
    return isinstance(decision, Proceed) and decision.shares is not None
