"""A cluster without tensors: plays a script under a policy, in virtual time, with the ledger as referee."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from polyrhythm.core import (
    Alarm,
    Cluster,
    Decisions,
    Driver,
    Entry,
    Event,
    Header,
    LeftReason,
    Policy,
    Proceed,
    Report,
    Sync,
    Ticket,
    Trace,
)
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.errors import PolicyError
from polyrhythm.testing.script import ClusterScript

Decide: TypeAlias = Callable[[Any, Event], tuple[Any, Decisions]]
EventObserver: TypeAlias = Callable[["ScriptPlayer", Event], None]


@dataclass(frozen=True)
class ScriptedStep:
    """A step in flight."""

    ticket: Ticket
    sample_range: SampleRange
    duration_s: float
    version: int


class ScriptPlayer:
    """Plays one script; afterwards it can be asked what has happened.

    Args:
        policy: what is run.
        script: durations, faults and arrivals.
        decide: called in place of ``policy.decide``, to look over its shoulder.
        watch: called after every event, before its decisions are carried out.
    """

    def __init__(
        self,
        policy: Policy[Any],
        script: ClusterScript,
        decide: Decide | None = None,
        watch: EventObserver | None = None,
    ):
        self.policy = policy
        self.script = script
        self.cluster = Cluster(
            script.workers, script.batch_size, script.total_samples, dataset_samples=script.dataset_samples
        )
        self.workload = Workload(script.dataset_samples, script.total_samples)
        self.entries: list[Entry] = []
        self.now_s = 0.0
        self.deaths = 0
        self.processed: list[SampleRange] = []
        self.lost: list[SampleRange] = []
        self.behind: list[int] = []
        self._watch = watch
        self.driver = Driver(policy, self.cluster, self, record=self._record, decide=decide)
        self.ledger = self.driver.ledger
        self._version = 0
        self._steps: dict[int, ScriptedStep] = {}
        self._gradients: dict[Ticket, SampleRange] = {}
        self._replicas: dict[int, list[SampleRange]] = {}
        self._batch_sizes: dict[int, int] = {}
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def trace(self) -> Trace:
        """Everything that the policy was told and decided."""
        return Trace(Header(self.policy.spec, self.cluster), tuple(self.entries))

    @property
    def left(self) -> tuple[SampleRange, ...]:
        """What of the workload was not handed out, or was given back."""
        return replace(self.workload, returned=list(self.workload.returned)).drain()

    @property
    def limit(self) -> int:
        """More events than any policy needs that gets on."""
        batches = self.script.total_samples // self.script.batch_size
        return 1000 + 50 * (batches + self.script.everyone + len(self.script.faults))

    def play(self) -> "ScriptPlayer":
        """Run until nothing more is due.

        Raises:
            PolicyError: when a decision breaks the contract, or the policy keeps the cluster busy without an end.
        """
        for arrival in self.script.arrivals:
            self._at(arrival.time_s, partial(self._arrive, arrival.workers))
        self._arrive(self.script.workers)
        while self._calendar:
            self.now_s, _, action = heapq.heappop(self._calendar)
            action()
        return self

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._calendar, (time_s, next(self._order), action))

    def _record(self, event: Event, decisions: Decisions) -> None:
        self.entries.append(Entry(event, decisions))
        if self._watch:
            self._watch(self, event)
        if len(self.entries) > self.limit:
            raise PolicyError(f"{self.limit} events and no end: the policy keeps the cluster busy without progress")

    # What the policy decides (see `Effects`).

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine; note who is left behind."""
        self.processed += [self._gradients.pop(ticket) for ticket in tickets]
        if decision.what != "gradients":
            for worker in decision.workers:
                self.processed += self._replicas.pop(worker, [])
            for worker in decision.adopters or ():
                self.lost += self._replicas.pop(worker, [])
        elif tickets:
            self.behind += sorted({worker for worker in decision.workers if self.ledger.accounts[worker].gradients})
        else:
            self.processed += [self._replicas[worker].pop() for worker in decision.workers]
        self._version += 1

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """Start a step, and plan its end."""
        worker = ticket.worker
        if decision.settings:
            self._batch_sizes[worker] = decision.settings.batch_size or self.script.batch_size
        sample_range = self.workload.hand_out(self._batch_sizes.get(worker, self.script.batch_size))
        if sample_range is None:
            self.driver.finish(worker)
        else:
            self._start(worker, ticket, sample_range)
        return sample_range is not None

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Give the samples back."""
        for ticket in tickets:
            self._void(ticket)

    def wake(self, time_s: float) -> None:
        """Plan an alarm."""
        self._at(time_s + self.script.alarm_delay_s, lambda: self.driver.tell(Alarm(self.now_s)))

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine what a worker that has finished has pending."""
        self.processed += [self._gradients.pop(ticket) for ticket in tickets]
        self._version += 1

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """A worker goes; its replica counts if it has finished."""
        steps = self._replicas.pop(worker, [])
        if reason == "finished":
            self.processed += steps
        else:
            self.lost += steps
        self.cancel((worker,), tickets)
        self._batch_sizes.pop(worker, None)

    def _start(self, worker: int, ticket: Ticket, sample_range: SampleRange) -> None:
        duration_s = self.script.duration_s(worker, ticket.number)
        step = self._steps[worker] = ScriptedStep(ticket, sample_range, duration_s, self._version)
        self._at(self.now_s + duration_s, partial(self._report, worker, step))
        account = self.ledger.accounts[worker]
        for fault in self.script.faults:
            if (fault.worker, fault.step) == (worker, ticket.number):
                self._at(self.now_s + fault.at * duration_s, partial(self._fail, worker, account, fault.reason))

    def _report(self, worker: int, step: ScriptedStep) -> None:
        if self._steps.get(worker) is not step:
            return
        del self._steps[worker]
        clock, ticket = self.ledger.report(worker)
        if ticket.exchange == "gradients":
            self._gradients[ticket] = step.sample_range
        else:
            self._replicas.setdefault(worker, []).append(step.sample_range)
        stale = self._version - step.version if ticket.exchange == "gradients" else 0
        loss = 1 / clock if "loss" in self.policy.traits.needs else None
        norm = 1.0 + ticket.number % 3 if "grad_sq_norm" in self.policy.traits.needs else None
        samples = step.sample_range.samples
        self.driver.tell(Report(worker, clock, self.now_s, samples, step.duration_s, 0.0, stale, loss, norm))

    def _fail(self, worker: int, account: object, reason: LeftReason) -> None:
        if self.ledger.accounts.get(worker) is account:
            self.deaths += 1
            self.driver.leave(worker, self.now_s, reason)

    def _void(self, ticket: Ticket) -> None:
        step = self._steps.get(ticket.worker)
        if step is not None and step.ticket is ticket:
            del self._steps[ticket.worker]
            self.workload.give_back(step.sample_range)
        else:
            self.workload.give_back(self._gradients.pop(ticket))

    def _arrive(self, workers: int) -> None:
        free = (worker for worker in count() if worker not in self.ledger.accounts)
        self.driver.join(tuple(next(free) for _ in range(workers)), self.now_s)
