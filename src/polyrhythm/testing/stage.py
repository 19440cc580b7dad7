"""A cluster without tensors: plays a script under a policy, in virtual time, with the ledger as referee."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from polyrhythm.core import (
    Alarm,
    Cancel,
    Cluster,
    Decision,
    Decisions,
    Entry,
    Event,
    Header,
    Joined,
    Ledger,
    Left,
    LeftReason,
    Policy,
    Proceed,
    Report,
    Settings,
    Sync,
    Ticket,
    Trace,
    Wake,
)
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.errors import PolicyError
from polyrhythm.testing.script import ClusterScript

Decide: TypeAlias = Callable[[Any, Event], tuple[Any, Decisions]]
Observer: TypeAlias = Callable[["ScriptPlayer", Event], None]


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
        policy: the rule.
        script: durations, faults and arrivals.
        decide: called in place of ``policy.decide``, to look over its shoulder.
        watch: called after every event, before its decisions are carried out.
    """

    def __init__(
        self, policy: Policy[Any], script: ClusterScript, decide: Decide | None = None, watch: Observer | None = None
    ):
        self.policy = policy
        self.script = script
        self.cluster = Cluster(
            script.workers, script.batch_size, script.total_samples, dataset_samples=script.dataset_samples
        )
        self.ledger = Ledger()
        self.workload = Workload(script.dataset_samples, script.total_samples)
        self.entries: list[Entry] = []
        self.now_s = 0.0
        self.deaths = 0
        self.processed: list[SampleRange] = []
        self.lost: list[SampleRange] = []
        self.behind: list[int] = []
        self._decide = decide or policy.decide
        self._watch = watch
        self._state = policy.init(self.cluster)
        self._version = 0
        self._steps: dict[int, ScriptedStep] = {}
        self._gradients: dict[Ticket, SampleRange] = {}
        self._replicas: dict[int, list[SampleRange]] = {}
        self._batch_sizes: dict[int, int] = {}
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._events: deque[Event] = deque()

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
        self._settle_events()
        while self._calendar:
            self.now_s, _, action = heapq.heappop(self._calendar)
            action()
            self._settle_events()
        return self

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._calendar, (time_s, next(self._order), action))

    def _settle_events(self) -> None:
        """Show the policy what has happened; decisions may make more happen."""
        while self._events:
            event = self._events.popleft()
            self._state, decisions = self._decide(self._state, event)
            self.entries.append(Entry(event, decisions))
            if self._watch:
                self._watch(self, event)
            if len(self.entries) > self.limit:
                raise PolicyError(f"{self.limit} events and no end: the policy keeps the cluster busy without progress")
            for decision in decisions:
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Sync():
                self._sync(decision)
            case Proceed(workers=workers, settings=settings):
                for worker in workers:
                    self._proceed(replace(decision, workers=(worker,)), worker, settings)
            case Cancel(workers=workers):
                for worker in workers:
                    self._void(worker, self.ledger.cancel((worker,)))
            case Wake(time_s=time_s):
                self._wake(time_s)

    def _sync(self, decision: Sync) -> None:
        tickets = self.ledger.sync(decision)
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

    def _proceed(self, decision: Proceed, worker: int, settings: Settings | None) -> None:
        if settings:
            self._batch_sizes[worker] = settings.batch_size or self.script.batch_size
        waits = worker in self.ledger.accounts and worker not in self._steps
        sample_range = self.workload.hand_out(self._batch_sizes.get(worker, self.script.batch_size)) if waits else None
        if waits and sample_range is None:
            self._leave(worker, "finished")
            return
        (ticket,) = self.ledger.proceed(decision)
        assert sample_range is not None, "the ledger lets only waiting workers proceed"
        self._start(worker, ticket, sample_range)

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
        report = Report(worker, clock, self.now_s, step.sample_range.samples, step.duration_s, 0.0, stale, loss, norm)
        self._events.append(report)

    def _fail(self, worker: int, account: object, reason: LeftReason) -> None:
        if self.ledger.accounts.get(worker) is account:
            self.deaths += 1
            self._leave(worker, reason)

    def _leave(self, worker: int, reason: LeftReason) -> None:
        if reason == "finished":
            tickets = self.ledger.settle(worker)
            self.processed += [self._gradients.pop(ticket) for ticket in tickets]
            self.processed += self._replicas.pop(worker, [])
            self._version += bool(tickets)
        clock, void = self.ledger.leave(worker)
        self._void(worker, void)
        self.lost += self._replicas.pop(worker, [])
        self._batch_sizes.pop(worker, None)
        self._events.append(Left(worker, self.now_s, clock, reason))

    def _void(self, worker: int, tickets: list[Ticket]) -> None:
        """Give back the samples of steps and gradients that are dropped."""
        for ticket in tickets:
            step = self._steps.get(worker)
            if step is not None and step.ticket is ticket:
                del self._steps[worker]
                self.workload.give_back(step.sample_range)
            else:
                self.workload.give_back(self._gradients.pop(ticket))

    def _arrive(self, workers: int) -> None:
        free = (worker for worker in count() if worker not in self.ledger.accounts)
        numbers = tuple(next(free) for _ in range(workers))
        self._events.append(Joined(numbers, self.now_s, self.ledger.join(numbers)))

    def _wake(self, time_s: float) -> None:
        if not self.now_s <= time_s < float("inf"):
            raise PolicyError(f"Wake asks for an alarm at {time_s}, but it is {self.now_s} already")
        self._at(time_s + self.script.alarm_delay_s, lambda: self._events.append(Alarm(self.now_s)))
