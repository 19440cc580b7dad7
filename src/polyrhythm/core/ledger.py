"""Bookkeeping of who runs, who waits and what became of every contribution: the law that none is lost or used twice.

Both drivers and the conformance kit keep one `Ledger` and show it every event and decision. It refuses a decision
that breaks the contract of `polyrhythm.core.policy` and says which contributions a decision touches; the driver maps
those to tensors. It keeps no history, so its size is that of the workers and of what they have pending.

A gradient is pending from its report until a `Sync` takes it. A step on a replica is pending from its report until
the replica is averaged: it is already in the replica, and is lost if the worker leaves before.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from polyrhythm.core.types import Exchange, Proceed, Sync
from polyrhythm.errors import PolicyError

DropReason: TypeAlias = Literal["cancelled", "left", "skipped", "unfinished", "replaced"]
"""Why a contribution was not applied: a `Cancel`; its worker left; its script made no step; the run ended first; its
worker took over an average in which it had no part."""


class Ticket(NamedTuple):
    """Names one contribution: the `number`-th step that `worker` has started, and what the step worked on."""

    worker: int
    number: int
    exchange: Exchange


@dataclass(slots=True)
class Account:
    """One live worker: its clock, the steps it has started, the one in flight, and what it has pending."""

    clock: int
    started: int = 0
    running: Ticket | None = None
    gradients: deque[Ticket] = field(default_factory=deque)
    local_steps: int = 0


@dataclass(slots=True)
class Ledger:
    """State of every live worker, and counts of contributions computed, applied and dropped.

    At all times ``computed == applied + sum(dropped.values()) + pending``, where a step that is abandoned in flight
    counts as computed and dropped.
    """

    accounts: dict[int, Account] = field(default_factory=dict)
    computed: int = 0
    applied: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)
    latest_clock: int = 0
    past_steps: dict[int, int] = field(default_factory=dict)
    """Steps that workers which have left had started: a worker that comes back never uses a number twice."""

    @property
    def pending(self) -> int:
        """Contributions that have arrived and were neither applied nor dropped."""
        return sum(len(account.gradients) + account.local_steps for account in self.accounts.values())

    def join(self, workers: Iterable[int]) -> int:
        """Open accounts; returns the clock at which the newcomers start (see `Joined`)."""
        clock = min((account.clock for account in self.accounts.values()), default=self.latest_clock)
        for worker in workers:
            if worker in self.accounts:
                raise PolicyError(f"worker {worker} joined twice; it must leave before it joins again")
            self.accounts[worker] = Account(clock, self.past_steps.pop(worker, 0))
        return clock

    def leave(self, worker: int) -> tuple[int, list[Ticket]]:
        """Close an account and drop what it holds; its last clock and the tickets that are void now."""
        account = self.accounts.pop(worker)
        self.past_steps[worker] = account.started
        void = self._abandon(account, "left")
        self._drop(account.local_steps, "left")
        return account.clock, void

    def proceed(self, decision: Proceed) -> list[Ticket]:
        """Start one step on each named worker; the tickets of these steps."""
        return [self._start(worker, decision.exchange) for worker in decision.workers]

    def take_back(self, ticket: Ticket) -> None:
        """The step that was started last on a worker is none, because nothing is left for it; its number is free."""
        account = self.accounts[ticket.worker]
        account.running = None
        account.started -= 1

    def report(self, worker: int) -> tuple[int, Ticket]:
        """The step in flight is complete and its contribution pending; the worker's new clock, and the ticket."""
        account = self.accounts[worker]
        ticket = account.running
        assert ticket is not None, f"worker {worker} reported without a step in flight"
        account.running = None
        account.clock += 1
        self.latest_clock = max(self.latest_clock, account.clock)
        self.computed += 1
        if ticket.exchange == "gradients":
            account.gradients.append(ticket)
        else:
            account.local_steps += 1
        return account.clock, ticket

    def sync(self, decision: Sync) -> list[Ticket]:
        """Take what a `Sync` combines; for gradients their tickets, in the order of its workers."""
        if not decision.workers:
            raise PolicyError("Sync names no workers; leave the decision out instead")
        if decision.weights is not None:
            check_weights(decision.weights, decision.workers)
        if decision.what == "gradients":
            return [ticket for worker in decision.workers if (ticket := self._take_gradient(worker))]
        for worker in decision.workers:
            self._take_replica(worker)
        for worker in decision.adopters or ():
            self._replace_replica(worker)
        return []

    def settle(self, worker: int) -> list[Ticket]:
        """Take all that a worker has pending before it leaves as "finished": the driver applies their mean once."""
        account = self.accounts[worker]
        tickets = list(account.gradients)
        account.gradients.clear()
        self.applied += len(tickets) + account.local_steps
        account.local_steps = 0
        return tickets

    def lose(self, steps: int) -> None:
        """Local steps that were settled, and then lost with the only replica that had them."""
        self.applied -= steps
        self._drop(steps, "left")

    def cancel(self, workers: Iterable[int]) -> list[Ticket]:
        """Drop what these workers have in flight and their pending gradients; the tickets that are void now."""
        return [t for worker in workers for t in self._abandon(self._live(worker, "Cancel"), "cancelled")]

    def require_running(self, workers: Iterable[int]) -> None:
        """Refuse a `Stop` of a worker that waits: nobody would ever hear that it has stopped."""
        for worker in workers:
            if self._live(worker, "Stop").running is None:
                raise PolicyError(f"Stop names worker {worker}, which is not running; let it Proceed first")

    def skip(self, worker: int) -> None:
        """The step in flight came to nothing; what the worker has pending stays."""
        account = self.accounts[worker]
        assert account.running is not None, f"worker {worker} skipped without a step in flight"
        account.running = None
        self.computed += 1
        self._drop(1, "skipped")

    def finish(self) -> list[Ticket]:
        """End of the run: gradients that nobody combined are dropped; a closing average takes the local steps."""
        void = []
        for account in self.accounts.values():
            void += self._abandon(account, "unfinished")
            self.applied += account.local_steps
            account.local_steps = 0
        return void

    def _live(self, worker: int, decision: str) -> Account:
        if worker not in self.accounts:
            raise PolicyError(f"{decision} names worker {worker}, which is not live; forget a worker once it has Left")
        return self.accounts[worker]

    def _start(self, worker: int, exchange: Exchange) -> Ticket:
        account = self.accounts.get(worker) or self._live(worker, "Proceed")
        if account.running is not None:
            raise PolicyError(f"Proceed names worker {worker}, which is still running; await its Report or Cancel it")
        if exchange == "gradients" and account.local_steps:
            raise PolicyError(
                f"Proceed lets worker {worker} read the global parameters and forget {account.local_steps} local "
                "steps; Sync its parameters first"
            )
        account.running = Ticket(worker, account.started, exchange)
        account.started += 1
        return account.running

    def _take_gradient(self, worker: int) -> Ticket | None:
        """The oldest gradient that is pending; None if it is that of the worker's latest step on its replica."""
        account = self.accounts.get(worker) or self._live(worker, "Sync")
        if account.gradients:
            self.applied += 1
            return account.gradients.popleft()
        if not account.local_steps or account.running is not None:
            raise PolicyError(f"Sync names worker {worker}, which has no gradient pending")
        account.local_steps -= 1
        self.applied += 1
        return None

    def _take_replica(self, worker: int) -> None:
        account = self._live(worker, "Sync")
        if account.running is not None:
            raise PolicyError(f"Sync averages worker {worker}, which is still running; await its Report or Cancel it")
        self.applied += account.local_steps
        account.local_steps = 0

    def _replace_replica(self, worker: int) -> None:
        """An adopter gives up what only its own replica had; of a contributor nothing is left to give up."""
        account = self._live(worker, "Sync")
        if account.running is not None:
            raise PolicyError(f"Sync replaces the replica of worker {worker}, which is still running; Cancel it first")
        self._drop(account.local_steps, "replaced")
        account.local_steps = 0

    def _abandon(self, account: Account, reason: DropReason) -> list[Ticket]:
        void = list(account.gradients)
        if account.running is not None:
            void.append(account.running)
            self.computed += 1
        account.gradients.clear()
        account.running = None
        self._drop(len(void), reason)
        return void

    def _drop(self, count: int, reason: DropReason) -> None:
        if count:
            self.dropped[reason] += count


def check_weights(weights: tuple[float, ...], workers: tuple[int, ...]) -> None:
    """Weights of a `Sync` that make a mean."""
    if len(weights) != len(workers):
        raise PolicyError(f"Sync has {len(weights)} weights for {len(workers)} workers")
    total = sum(weights)
    if not 0 < total < math.inf:
        raise PolicyError(f"weights {list(weights)} sum to {total}; a Sync needs a positive, finite sum")
