"""A cluster without tensors: plays a script under a policy, in virtual time, with the ledger as referee."""

import heapq
from collections import defaultdict, deque
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
    LossMeasured,
    MeasureLoss,
    Policy,
    Proceed,
    Report,
    Sync,
    Ticket,
    Trace,
    Wake,
)
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.errors import PolicyError
from polyrhythm.testing.script import ClusterScript

Decide: TypeAlias = Callable[[Any, Event], tuple[Any, Decisions]]
EventObserver: TypeAlias = Callable[["ScriptPlayer", Event], None]


@dataclass(eq=False)
class ScriptedStep:
    """A step that its worker has begun and nobody has heard of yet; void once it is abandoned."""

    worker: int
    sample_range: SampleRange
    duration_s: float
    version: int
    complete: bool = False
    void: bool = False


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
        """The step of each worker that the policy has let proceed."""
        self._ahead: defaultdict[int, deque[ScriptedStep]] = defaultdict(deque)
        """Those after it, which workers that do not wait have begun by themselves."""
        self._begun: defaultdict[int, int] = defaultdict(int)
        self._gradients: dict[Ticket, SampleRange] = {}
        self._replicas: dict[int, list[SampleRange]] = {}
        self._batch_sizes: dict[int, int] = {}
        self._accounts: dict[int, object] = {}
        """The account under which each worker has begun its latest step."""
        self._away: dict[int, object] = {}
        """The same of those that stand at the end of their epoch."""
        self._opened = 1
        """Epochs of which mini-batches are handed out, where all meet at the end of each."""
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
            self._meet()
        return self

    def _meet(self) -> None:
        """All stand at the end of an epoch: they make what somebody has left behind, or begin the next one."""
        while self._away and not self.ledger.accounts and self.workload.left:
            if not self.workload.returned:
                self._opened += 1
            workers, self._away = tuple(sorted(self._away)), {}
            self.driver.join(workers, self.now_s)

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
        step = self._ahead[worker].popleft() if self._ahead[worker] else self._begin(worker, decision.share(worker))
        if step is None:
            self.driver.finish(worker)
        else:
            self._steps[worker] = step
        return step is not None

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Give the samples back."""
        for ticket in tickets:
            self._void(ticket)

    def stop(self, workers: tuple[int, ...]) -> None:
        """The word travels, and the answer."""
        for worker in workers:
            self._at(
                self.now_s + self.script.latency_s, partial(self._told_to_stop, self.ledger.accounts[worker], worker)
            )

    def wake(self, decision: Wake) -> None:
        """Plan an alarm."""
        self._at(decision.time_s + self.script.alarm_delay_s, partial(self._alarm, decision))

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine what a worker that has finished has pending."""
        self.processed += [self._gradients.pop(ticket) for ticket in tickets]
        self._version += 1

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """A worker goes; its replica counts if it has finished."""
        steps = self._replicas.pop(worker, [])
        if reason == "finished":
            self.processed += steps
            if self.script.meets:
                self._away[worker] = self._accounts.get(worker)
        else:
            self.lost += steps
        self.cancel((worker,), tickets)
        for step in self._ahead.pop(worker, ()):
            self._abandon(step)
        self._batch_sizes.pop(worker, None)

    def _alarm(self, decision: Wake) -> None:
        measured = isinstance(decision, MeasureLoss)
        self.driver.tell(LossMeasured(self.now_s, 1 / self._version) if measured else Alarm(self.now_s))

    def _begin(self, worker: int, share: int | None = None) -> ScriptedStep | None:
        sample_range = self._hand_out(share or self._batch_sizes.get(worker, self.script.batch_size))
        if sample_range is None:
            return None
        number, self._begun[worker] = self._begun[worker], self._begun[worker] + 1
        step = ScriptedStep(worker, sample_range, self.script.duration_s(worker, number), self._version)
        self._at(self.now_s + step.duration_s, partial(self._complete, step))
        account = self._accounts[worker] = self.ledger.accounts[worker]
        for fault in self.script.faults:
            if (fault.worker, fault.step) == (worker, number):
                self._at(self.now_s + fault.at * step.duration_s, partial(self._fail, worker, account, fault.reason))
        return step

    def _hand_out(self, samples: int) -> SampleRange | None:
        epoch_is_over = self.workload.handed_out >= self._opened * self.script.dataset_samples
        if self.script.meets and epoch_is_over and not self.workload.returned:
            return None
        return self.workload.hand_out(samples)

    def _complete(self, step: ScriptedStep) -> None:
        """Report at once, or send the report and go on."""
        if step.void:
            return
        step.complete = True
        if self.policy.traits.waits:
            self._report(step)
            return
        self._at(self.now_s + self.script.latency_s, partial(self._report, step))
        if (following := self._begin(step.worker)) is not None:
            self._ahead[step.worker].append(following)

    def _report(self, step: ScriptedStep) -> None:
        if step.void:
            return
        worker = step.worker
        assert self._steps.pop(worker) is step, "reports come in order"
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
        elif worker not in self.ledger.accounts and self._away.get(worker) is account:
            del self._away[worker]  # nobody is told
            self.deaths += 1

    def _told_to_stop(self, account: object, worker: int) -> None:
        """The newest step is abandoned; its samples come back with the answer, after all reports."""
        if self.ledger.accounts.get(worker) is account:
            newest = self._ahead[worker][-1] if self._ahead[worker] else self._steps.get(worker)
            if newest is not None and not newest.complete:
                newest.void = True
            self._at(self.now_s + self.script.latency_s, partial(self._has_stopped, account, worker))

    def _has_stopped(self, account: object, worker: int) -> None:
        if self.ledger.accounts.get(worker) is account:
            self.driver.stopped(worker, self.now_s)

    def _abandon(self, step: ScriptedStep) -> None:
        step.void = True
        self.workload.give_back(step.sample_range)

    def _void(self, ticket: Ticket) -> None:
        if ticket in self._gradients:
            self.workload.give_back(self._gradients.pop(ticket))
        else:
            self._abandon(self._steps.pop(ticket.worker))

    def _arrive(self, workers: int) -> None:
        free = (worker for worker in count() if worker not in self.ledger.accounts and worker not in self._away)
        self.driver.join(tuple(next(free) for _ in range(workers)), self.now_s)
