"""Relay: one policy hands the running job over to another; what is in flight and pending then is settled by one policy.

From the moment of the hand-over on nobody is started any more. Steps in flight finish, and each gradient is applied
when it arrives; or they are cancelled, which is counted, and their samples are handed out again. When nobody runs,
gradients that the old policy still held are applied, those of one worker as one update with their mean, and replicas
are averaged. Then the next policy is told of everyone present as `Joined`, all at the same clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from polyrhythm.core import Cancel, Cluster, Decisions, Event, Joined, Policy, Proceed, Report, Sync, Wake
from polyrhythm.policies._lib.roll import Roll
from polyrhythm.policies._lib.wrapping import ClockView


@dataclass(frozen=True, slots=True)
class Relay:
    """The policy in force with its state, the roll of the workers, and who follows once nobody runs.

    Args:
        cluster: as the first policy was told of it.
        policy: the policy in force; while `following` is given it is not asked any more.
        inner: its state.
        drops: whether steps in flight are cancelled at a hand-over.
        switches: hand-overs so far.
    """

    cluster: Cluster
    policy: Policy[Any]
    inner: Any
    roll: Roll
    view: ClockView = field(default_factory=ClockView)
    following: Policy[Any] | None = None
    drops: bool = False
    switches: int = 0

    @staticmethod
    def start(policy: Policy[Any], cluster: Cluster, drops: bool = False) -> "Relay":
        return Relay(cluster, policy, policy.init(cluster), Roll(processed=cluster.processed_samples), drops=drops)

    def decide(
        self, event: Event, choose: Callable[[int], Policy[Any] | None], at_rest: bool = False
    ) -> tuple["Relay", Decisions]:
        """What the policy in force decides, or what a hand-over makes of it.

        Args:
            event: what has happened.
            choose: the policy that is to follow now, given the samples whose gradients were applied; None is no change.
                It is asked after a report, and whenever something was combined.
            at_rest: ask only where nobody runs but for what the policy in force has just decided, as at a barrier.
        """
        roll, view = self.roll.after(event), self.view.follow(event, self.roll)
        if self.following is not None:
            late = late_update(event, roll)
            return replace(self, roll=roll.carry_out(late), view=view)._go_on_if_standing(event.time_s, late)
        inner, decisions = self.policy.decide(self.inner, view.seen(event))
        after = roll.carry_out(decisions)
        progress = isinstance(event, Report) or any(isinstance(d, Sync) for d in decisions)
        combined = tuple(d for d in decisions if not isinstance(d, Proceed | Wake))
        progress = progress and not (at_rest and roll.carry_out(combined).running)
        following = choose(after.processed) if progress else None
        if following is None:
            return Relay(self.cluster, self.policy, inner, after, view, None, self.drops, self.switches), decisions
        stopped = replace(self, inner=None, roll=roll.carry_out(combined), view=view, following=following)
        return stopped._stop(event.time_s, combined)

    def _stop(self, time_s: float, decisions: Decisions) -> tuple["Relay", Decisions]:
        """Start nobody any more, and abandon what is in flight if `drops` says so."""
        running = tuple(worker for worker, live_worker in self.roll.live_workers.items() if live_worker.running)
        if not self.drops or not running:
            return self._go_on_if_standing(time_s, decisions)
        ended = (*held_updates(self.roll), Cancel(running))
        return replace(self, roll=self.roll.carry_out(ended))._go_on_if_standing(time_s, (*decisions, *ended))

    def _go_on_if_standing(self, time_s: float, decisions: Decisions) -> tuple["Relay", Decisions]:
        """Once nobody runs, settle what is pending and let the next policy begin."""
        if self.roll.running or self.following is None:
            return self, decisions
        settled = (*held_updates(self.roll), *closing_average(self.roll))
        roll, policy = self.roll.carry_out(settled), self.following
        workers = max(1, len(roll.present))
        cluster = replace(self.cluster, workers=workers, processed_samples=roll.processed)
        inner = policy.init(cluster)
        start: Decisions = ()
        if roll.live_workers:
            inner, start = policy.decide(inner, Joined(roll.workers, time_s, roll.clock))
        view = ClockView.level(roll)
        begun = Relay(self.cluster, policy, inner, roll.carry_out(start), view, None, self.drops, self.switches + 1)
        return begun, (*decisions, *settled, *start)


def late_update(event: Event, roll: Roll) -> Decisions:
    """The gradient that has arrived during a hand-over, applied at once."""
    if not isinstance(event, Report):
        return ()
    pending = len(roll.live_worker(event.worker).gradients)
    return (Sync((event.worker,) * pending),) if pending else ()


def held_updates(roll: Roll) -> Decisions:
    """What the old policy still held: one update for each worker."""
    held = ((worker, len(live_worker.gradients)) for worker, live_worker in roll.live_workers.items())
    return tuple(Sync((worker,) * count) for worker, count in held if count)


def closing_average(roll: Roll) -> Decisions:
    """An average of the replicas that have moved, which everyone takes over."""
    moved = tuple(float(live_worker.local > 0) for _, live_worker in roll.live_workers.items())
    if not any(moved):
        return ()
    return (Sync(roll.workers, "parameters", None if all(moved) else moved),)
