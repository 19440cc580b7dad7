"""Passing a running job from one rule to another: what the rules that wrap others share.

A rule that takes over meets workers in mid-run. It is told of all who are live as `Joined`, each with its clock, and
lets them start; of those only the ones that wait really do, the others are under way and report to it later. Gradients
that the old rule was still holding are applied first, as one update with their mean.

Unlike `polyrhythm.policies._lib.relay`, which changes between any two rules and first lets everyone come to a stand,
this costs no wait, so that it may happen every few steps; the price is that both rules must exchange gradients.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core import Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError


@dataclass(frozen=True, slots=True)
class Crew:
    """Who is live and at which clock, who waits, and how many gradients of whom are pending.

    >>> crew = Crew().after(Joined((0, 1), 0.0), (Proceed((0, 1)),)).after(Report(1, 1, 1.0), ())
    >>> list(crew.waiting), dict(crew.pending.items())
    ([1], {1: 1})
    """

    clocks: WorkerMap[int] = field(default_factory=WorkerMap)
    waiting: WorkerMap[bool] = field(default_factory=WorkerMap)
    pending: WorkerMap[int] = field(default_factory=WorkerMap)

    def after(self, event: Event, decisions: Decisions) -> "Crew":
        """Once `event` has happened and `decisions` are carried out."""
        if isinstance(event, Report) and applies_at_once(event.worker, decisions):
            clocks, waiting = self.clocks.set(event.worker, event.clock), self.waiting.set(event.worker, True)
            return Crew(clocks, waiting, self.pending).obey(decisions[1:])
        return self.hear(event).obey(decisions)

    def hear(self, event: Event) -> "Crew":
        """Once `event` has happened."""
        match event:
            case Report(worker=worker, clock=clock):
                held = (self.pending.get(worker) or 0) + 1
                return Crew(
                    self.clocks.set(worker, clock), self.waiting.set(worker, True), self.pending.set(worker, held)
                )
            case Joined(workers=workers, clock=clock):
                return Crew(self.clocks.set_all(workers, clock), self.waiting.set_all(workers, True), self.pending)
            case Left(worker=worker):
                return Crew(self.clocks.remove(worker), self.waiting.remove(worker), self.pending.remove(worker))
        return self

    def obey(self, decisions: Decisions) -> "Crew":
        """Once `decisions` are carried out."""
        waiting, pending = self.waiting, self.pending
        if not decisions:
            return self
        for decision in decisions:
            if isinstance(decision, Proceed):
                waiting = without(waiting, decision.workers)
            elif isinstance(decision, Sync):
                pending = less(pending, decision.workers)
        return Crew(self.clocks, waiting, pending)


def applies_at_once(worker: int, decisions: Decisions) -> bool:
    """Whether as many gradients of `worker` stay pending as before its report; true of most steps of most rules."""
    first = decisions[0] if decisions else None
    return isinstance(first, Sync) and first.workers == (worker,)


def without(waiting: WorkerMap[bool], workers: Iterable[int]) -> WorkerMap[bool]:
    """`waiting` without `workers`."""
    for worker in workers:
        waiting = waiting.remove(worker)
    return waiting


def less(pending: WorkerMap[int], workers: Iterable[int]) -> WorkerMap[int]:
    """`pending` with one gradient less at each mention of a worker."""
    for worker in workers:
        held = (pending.get(worker) or 0) - 1
        pending = pending.set(worker, held) if held > 0 else pending.remove(worker)
    return pending


@dataclass(frozen=True, slots=True)
class Charge:
    """A rule that is in charge of the job, with its state.

    Example:
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
    crew: Crew = Crew()

    @classmethod
    def of(cls, policy: Policy[Any], cluster: Cluster) -> "Charge":
        """In charge from the start."""
        return cls(policy, policy.init(cluster))

    def decide(self, event: Event) -> tuple["Charge", Decisions]:
        """The rule decides."""
        state, decisions = self.policy.decide(self.state, event)
        return Charge(self.policy, state, self.crew.after(event, decisions)), decisions

    def follow(self, policy: Policy[Any], cluster: Cluster, event: Event) -> tuple["Charge", Decisions]:
        """`policy` decides from this event on; it takes over if it is another one."""
        if policy is self.policy or policy == self.policy:
            return self.decide(event)
        heard = Charge(self.policy, self.state, self.crew.hear(event))
        return heard.hand_over(policy, cluster, event.time_s)

    def hand_over(self, policy: Policy[Any], cluster: Cluster, time_s: float) -> tuple["Charge", Decisions]:
        """Another rule takes over now."""
        rest = tuple(worker for worker, held in self.crew.pending.items() for _ in range(held))
        state, released = policy.init(cluster), set[int]()
        for clock, workers in by_clock(self.crew.clocks):
            state, decisions = policy.decide(state, Joined(workers, time_s, clock))
            released.update(*(decision.workers for decision in decisions if isinstance(decision, Proceed)))
        ready = tuple(worker for worker in self.crew.waiting if worker in released)
        taken = ((Sync(rest),) if rest else ()) + ((Proceed(ready),) if ready else ())
        return Charge(policy, state, self.crew.obey(taken)), taken


def by_clock(clocks: WorkerMap[int]) -> list[tuple[int, tuple[int, ...]]]:
    """The live workers in groups of equal clock, ascending."""
    groups: dict[int, list[int]] = {}
    for worker, clock in clocks.items():
        groups.setdefault(clock, []).append(worker)
    return [(clock, tuple(groups[clock])) for clock in sorted(groups)]


def require_plain_gradients(name: str, rule: Policy[Any]) -> None:
    """Refuse a rule that cannot take over in mid-run: one on replicas, or one that abandons steps."""
    if rule.traits.exchanges != {"gradients"} or rule.traits.cancels:
        raise SpecError(f"{name} must exchange gradients and let steps finish but got {rule.spec!r}; try k-group:3")
