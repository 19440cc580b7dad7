"""What policies that wrap others share: the traits of several policies, and clocks as the wrapped policy sees them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from polyrhythm.core import Event, Joined, Left, Policy, Report, Traits
from polyrhythm.core.policy import Placement
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.roll import Roll

PLACEMENTS: tuple[Placement, ...] = ("clock", "every_rank", "coordinator")
"""From the cheapest on; each can do what those before it can."""


def joint_traits(policies: Iterable[Policy[Any]]) -> Traits:
    """What a driver needs that can run any of these policies.

    >>> from polyrhythm.policies import parse_policy
    >>> joint_traits([parse_policy("bsp"), parse_policy("local:8")]).placement
    'clock'
    """
    each = [policy.traits for policy in policies]
    return Traits(
        placement=max((traits.placement for traits in each), key=PLACEMENTS.index),
        exchanges=frozenset().union(*(traits.exchanges for traits in each)),
        needs=frozenset().union(*(traits.needs for traits in each)),
        cancels=any(traits.cancels for traits in each),
        waits=all(traits.waits for traits in each),
        reads_early=all(traits.reads_early for traits in each),
        shares=any(traits.shares for traits in each),
    )


def require_waiting(wrapper: str, policy: Policy[Any]) -> None:
    """Refuse a policy whose workers go on without an answer: nobody can start others in their place."""
    if not policy.traits.waits:
        raise SpecError(
            f"{wrapper} needs workers that wait for an answer to their reports, and those of {policy.spec!r} do not; "
            f"give for example {wrapper}:(switch:bsp@0.25,asp)"
        )


@dataclass(frozen=True, slots=True)
class ClockView:
    """Clocks as a policy sees them that started in the middle of the job, with everyone at the same clock.

    `ahead` is what the policy sees of each worker's clock beyond what the job counts; None before the first switch.
    """

    ahead: WorkerMap[int] | None = None

    @staticmethod
    def level(roll: Roll) -> "ClockView":
        """Everyone stands at the largest clock now."""
        clock = roll.clock
        ahead: WorkerMap[int] = WorkerMap()
        for worker, live_worker in roll.live_workers.items():
            ahead = ahead.set(worker, clock - live_worker.clock)
        return ClockView(ahead)

    def follow(self, event: Event, before: Roll) -> "ClockView":
        """With newcomers at the smallest clock that the policy sees; `before` is the roll without them."""
        if self.ahead is None or not isinstance(event, Joined):
            return self
        seen = [live_worker.clock + self.of(worker) for worker, live_worker in before.live_workers.items()]
        return ClockView(self.ahead.set_all(event.workers, min(seen, default=event.clock) - event.clock))

    def put(self, worker: int, ahead: int) -> "ClockView":
        known: WorkerMap[int] = WorkerMap() if self.ahead is None else self.ahead
        return ClockView(known.set(worker, ahead))

    def seen(self, event: Event) -> Event:
        """The event as the policy is told of it."""
        match event:
            case _ if self.ahead is None:
                return event
            case Report(worker=worker, clock=clock):
                return event._replace(clock=clock + self.of(worker))
            case Left(worker=worker, clock=clock):
                return replace(event, clock=clock + self.of(worker))
            case Joined(workers=workers, clock=clock):
                return replace(event, clock=clock + self.of(workers[0]))
            case _:
                return event

    def of(self, worker: int) -> int:
        """How far the policy sees this worker ahead of its clock."""
        return (self.ahead and self.ahead.get(worker)) or 0
