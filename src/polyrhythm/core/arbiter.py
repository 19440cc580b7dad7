"""One policy at work on real workers: events in, decisions checked by the ledger and handed on, all of it traced."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from polyrhythm.core import (
    Cancel,
    Cluster,
    Decision,
    Decisions,
    Event,
    Joined,
    Ledger,
    Left,
    LeftReason,
    Policy,
    Proceed,
    Report,
    Sync,
    Ticket,
    Wake,
)


class Hands(Protocol):
    """Carries out what a policy has decided."""

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine; `tickets` are the gradients taken, empty for replicas."""

    def has_batch(self, worker: int) -> bool:
        """Whether a mini-batch is left for the next step of this worker."""

    def go(self, ticket: Ticket, decision: Proceed) -> None:
        """Start this step."""

    def void(self, tickets: list[Ticket]) -> None:
        """These steps or gradients are dropped."""

    def wake(self, time_s: float) -> None:
        """Send an `Alarm` at this time."""


class Arbiter:
    """Shows events to a policy one at a time and has its decisions carried out in order."""

    def __init__(
        self,
        policy: Policy[Any],
        cluster: Cluster,
        ledger: Ledger,
        hands: Hands,
        record: Callable[[Event, Decisions], None],
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self._hands = hands
        self._record = record
        self._state = policy.init(cluster)
        self._queue: deque[Event] = deque()
        self._busy = False
        self.held = False
        """Nobody is started any more, whatever the policy decides."""

    def tell(self, event: Event) -> None:
        """Let the policy decide about `event` and about all that follows from its decisions at once."""
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                self._decide(self._queue.popleft())
        finally:
            self._busy = False

    def join(self, workers: tuple[int, ...], time_s: float) -> None:
        """These workers stand ready for their first step."""
        self.tell(Joined(workers, time_s, self.ledger.join(workers)))

    def report(self, report: Report) -> Ticket:
        """A worker's step is complete; the report's clock is filled in."""
        clock, ticket = self.ledger.report(report.worker)
        assert clock == report.clock, f"worker {report.worker} is at clock {clock}, not {report.clock}"
        self.tell(report)
        return ticket

    @property
    def figures(self) -> dict[str, float]:
        """What the policy has to show of itself; see `Policy.figures`."""
        return self.policy.figures(self._state)

    def leave(self, worker: int, time_s: float, reason: LeftReason) -> int:
        """A worker is gone for the policy; how many steps on its own replica are lost with it."""
        lost = 0
        if reason == "finished":
            self._settle(worker)
        else:
            lost = self.ledger.accounts[worker].local_steps
        clock, void = self.ledger.leave(worker)
        self._hands.void(void)
        self.tell(Left(worker, time_s, clock, reason))
        return lost

    def settle(self) -> None:
        """End of the phase: apply what is pending, drop what is in flight."""
        for worker in tuple(self.ledger.accounts):
            self._settle(worker)
        self._hands.void(self.ledger.cancel(tuple(self.ledger.accounts)))

    def drop_running(self) -> None:
        """Apply what is pending of those who are under way, and cancel their steps."""
        for worker in [worker for worker, account in self.ledger.accounts.items() if account.running is not None]:
            self._settle(worker)
            self._hands.void(self.ledger.cancel((worker,)))

    def _settle(self, worker: int) -> None:
        tickets = self.ledger.settle(worker)
        if tickets:
            self._hands.sync(Sync((worker,) * len(tickets)), tickets)

    def _decide(self, event: Event) -> None:
        self._state, decisions = self.policy.decide(self._state, event)
        self._record(event, decisions)
        for decision in decisions:
            self._carry_out(decision, event.time_s)

    def _carry_out(self, decision: Decision, time_s: float) -> None:
        match decision:
            case Sync():
                self._hands.sync(decision, self.ledger.sync(decision))
            case Proceed(workers=workers):
                for worker in workers:
                    self._proceed(worker, decision, time_s)
            case Cancel(workers=workers):
                self._hands.void(self.ledger.cancel(workers))
            case Wake(time_s=alarm_s):
                self._hands.wake(alarm_s)

    def _proceed(self, worker: int, decision: Proceed, time_s: float) -> None:
        if self.held:
            return
        if not self._hands.has_batch(worker):
            self.leave(worker, time_s, "finished")
            return
        (ticket,) = self.ledger.proceed(Proceed((worker,), decision.exchange))
        self._hands.go(ticket, decision)
