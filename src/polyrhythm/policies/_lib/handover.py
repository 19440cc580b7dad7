"""Passing a running job from one policy to another: what the policies that wrap others share.

A policy that takes over meets workers in mid-run. It is told of all who are live as `Joined`, each with its clock, and
lets them start; of those only the ones that wait really do, the others are under way and report to it later. Gradients
that the old policy was still holding are applied first, as one update with their mean.

Unlike `polyrhythm.policies._lib.relay`, which changes between any two policies and first lets everyone come to a stand,
this costs no wait, so that it may happen every few steps; the price is that both policies must exchange gradients.
"""

from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy, Proceed, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.roll import LiveWorker, Roll


@dataclass(frozen=True, slots=True)
class Charge:
    """A policy that is in charge of the job, with its state.

    Example:
        >>> from polyrhythm.core import Report
        >>> from polyrhythm.policies import ASP, BSP
        >>> cluster = Cluster(workers=2)
        >>> charge, _ = Charge.of(BSP(), cluster).decide(Joined((0, 1), 0.0))
        >>> charge, decisions = charge.decide(Report(0, 1, 1.0))
        >>> decisions
        ()
        >>> charge.hand_over(ASP(), cluster, 1.0)[1]
        (Sync(workers=(0,), ...), Proceed(workers=(0,), ...))
    """

    policy: Policy[Any]
    state: Any
    roll: Roll = field(default_factory=Roll)

    @classmethod
    def of(cls, policy: Policy[Any], cluster: Cluster) -> "Charge":
        return cls(policy, policy.init(cluster))

    def decide(self, event: Event) -> tuple["Charge", Decisions]:
        state, decisions = self.policy.decide(self.state, event)
        return Charge(self.policy, state, self.roll.after(event).carry_out(decisions)), decisions

    def follow(self, policy: Policy[Any], cluster: Cluster, event: Event) -> tuple["Charge", Decisions]:
        """`policy` decides from this event on; it takes over if it is another one."""
        if policy is self.policy or policy == self.policy:
            return self.decide(event)
        heard = Charge(self.policy, self.state, self.roll.after(event))
        return heard.hand_over(policy, cluster, event.time_s)

    def hand_over(self, policy: Policy[Any], cluster: Cluster, time_s: float) -> tuple["Charge", Decisions]:
        live_workers = self.roll.live_workers
        rest = tuple(worker for worker, live_worker in live_workers.items() for _ in live_worker.gradients)
        state, released = policy.init(cluster), set[int]()
        for clock, workers in by_clock(live_workers):
            state, decisions = policy.decide(state, Joined(workers, time_s, clock))
            released.update(*(decision.workers for decision in decisions if isinstance(decision, Proceed)))
        ready = tuple(
            worker for worker, live_worker in live_workers.items() if not live_worker.running and worker in released
        )
        taken = ((Sync(rest),) if rest else ()) + ((Proceed(ready),) if ready else ())
        return Charge(policy, state, self.roll.carry_out(taken)), taken


def by_clock(live_workers: WorkerMap[LiveWorker]) -> list[tuple[int, tuple[int, ...]]]:
    groups: dict[int, list[int]] = {}
    for worker, live_worker in live_workers.items():
        groups.setdefault(live_worker.clock, []).append(worker)
    return [(clock, tuple(groups[clock])) for clock in sorted(groups)]


def require_plain_gradients(name: str, policy: Policy[Any]) -> None:
    """Refuse a policy that cannot take over in mid-run: one on replicas, or one that abandons steps."""
    if policy.traits.exchanges != {"gradients"} or policy.traits.cancels:
        raise SpecError(f"{name} must exchange gradients and let steps finish but got {policy.spec!r}; try k-group:3")
