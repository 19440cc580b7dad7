"""A whole job in memory: the real coordinator, and workers that do what a session does, interleaved at random.

A worker is a generator. It yields a key to take part in a collective with that name (the answer tells whether it
succeeded), or None to wait for the next message.
"""

import random
from collections import Counter, deque
from collections.abc import Generator, Sequence
from typing import Any

from polyrhythm.core import Cluster, Decisions, Entry, Event, Header, Policy, Ticket, Trace
from polyrhythm.core.workload import Lease
from polyrhythm.policies import parse
from polyrhythm.runtime import control
from polyrhythm.runtime.coordinator import Coordinator
from polyrhythm.runtime.schedule import Schedule
from polyrhythm.runtime.strides import Strides

Steps = Generator[tuple[Any, ...] | None, Any, None]


class FakeWorker:
    """One rank. `held` are positions that only its own replica or gradient has seen so far."""

    def __init__(self, job: "FakeJob", rank: int, ahead: int) -> None:
        self.job, self.rank, self.ahead = job, rank, ahead
        self.alive, self.finished, self.poisoned, self.left = True, False, False, False
        self.inbox: deque[control.ToWorker] = deque()
        self.held: list[Lease] = []
        self.phase: control.Phase | None = None
        self.life = self._live()
        self.wants = next(self.life)

    def _live(self) -> Steps:
        for epoch in range(self.job.epochs):
            self._tell(control.Ready(epoch, self.job.samples, self.job.batch_size, self.ahead))
            message = yield None
            while not isinstance(message, control.EpochDone):
                message = yield from self._follow(message, epoch)
                if self.left:  # its loop; nothing concerns this worker until the next phase
                    self.left, self.poisoned = False, True
                    break
        if self.poisoned:
            self.held.clear()
        self._tell(control.Bye())
        self.finished = True

    def _follow(self, message: control.ToWorker, epoch: int) -> Generator[Any, Any, Any]:
        """Do what a message asks for; the next message to follow."""
        match message:
            case control.Phase():
                self.poisoned = False
                yield from self._enter(message)
            case _ if self.poisoned:  # it belongs to a phase that has failed for this rank
                pass
            case control.Lockstep():
                yield from self._lockstep(message, epoch)
            case control.Go():
                return (yield from self._step(message, epoch))
            case control.Over():
                self._tell(control.AtEnd(epoch))
            case control.Refused(reason=reason):
                raise AssertionError(reason)
        return message if self.left else (yield None)

    def _enter(self, phase: control.Phase) -> Steps:
        self.phase, self.leases = phase, deque[Lease]()
        policy = parse(phase.policy)
        if policy.traits.venue == "scheduled":
            self.schedule = Schedule(policy, self.job.traces[-1][1], phase.members, self.rank)
        if phase.contributors and not (yield ("align", phase.number)):
            self._poison(0)
            return
        if phase.state == "upload" and self.rank == phase.source:
            self._tell(control.Uploaded(phase.number))

    def _step(self, go: control.Go, epoch: int) -> Generator[Any, Any, Any]:
        """One arbitrated step; what has arrived meanwhile is looked at before the push."""
        if self._leaves():
            self.left = True
            return go
        self.leases.extend(go.leases)
        lease = self.leases.popleft()
        if self.job.random.random() < self.job.skip:
            self._tell(control.Skipped(go.number, lease.samples))
        elif not (self.inbox and isinstance(self.inbox[0], control.Cancelled)):
            self.job.pushed[self.rank, go.number] = lease
            self._tell(control.Pushed(go.number, lease.samples, 1.0, 0.0))
        return (yield None)

    def _lockstep(self, start: control.Lockstep, epoch: int) -> Steps:
        assert self.phase is not None
        plan = Strides(start.ranges, len(self.phase.members), start.batch_size)
        self.schedule.start(plan)
        while not self.schedule.done:
            step, last = self.schedule.step, self.schedule.step == plan.steps - 1
            gradients = self.schedule.exchange == "gradients"
            if self._leaves():
                self.left = True
                return
            batch = self.schedule.batch()
            self.held.extend(batch)
            token = None if last else (yield None)
            assert last or (isinstance(token, control.Token) and token.step == step), (token, step)
            stop = token is not None and token.stop
            exchange = self.schedule.advance() is not None or last or stop
            if exchange and not (yield ("step", self.phase.number, start.ranges, step)):
                if gradients:
                    self.held.clear()
                self._poison(step + (not gradients))
                return
            self._tell(control.Stepped(step, sum(lease.samples for lease in batch), 1.0, exchange))
            if stop:
                return
        self._tell(control.AtEnd(epoch))

    def _leaves(self) -> bool:
        return self.job.random.random() < self.job.leave

    def _poison(self, completed: int) -> None:
        assert self.phase is not None
        self.poisoned = True
        self._tell(control.Poisoned(self.phase.number, completed))

    def _tell(self, message: control.ToHub) -> None:
        self.job.coordinator.receive(self.rank, message)


class FakeJob:
    """Office and world of the coordinator."""

    def __init__(
        self,
        policy: str,
        workers: int,
        samples: int,
        batch_size: int,
        epochs: int,
        seed: int,
        ahead: int = 0,
        skip: float = 0.0,
        leave: float = 0.0,
    ):
        self.samples, self.batch_size, self.epochs = samples, batch_size, epochs
        self.random, self.skip, self.leave = random.Random(seed), skip, leave
        self.ticks = 0
        self.traces: list[tuple[Policy[Any], Cluster, list[Entry]]] = []
        self.pushed: dict[tuple[int, int], Lease] = {}
        self.applied: Counter[tuple[int, int]] = Counter()
        self.collectives: dict[tuple[Any, ...], set[int]] = {}
        self.outcomes: dict[tuple[Any, ...], bool] = {}
        self.cut_phases: set[int] = set()
        self.coordinator = Coordinator(parse(policy), workers, self, lambda: float(self.ticks), epochs)
        self.workers: dict[int, FakeWorker] = {}
        self.mail: list[tuple[int, control.ToWorker]] = []
        for rank in range(workers):
            self.coordinator.connect(rank)
        for rank in range(workers):
            self.workers[rank] = FakeWorker(self, rank, ahead)
        for rank, message in self.mail:
            self.workers[rank].inbox.append(message)

    # -- office ----------------------------------------------------------------------------------------------------

    def send(self, worker: int, message: control.ToWorker) -> None:
        if len(self.workers) < self.coordinator.job.planned:
            self.mail.append((worker, message))
        else:
            self.workers[worker].inbox.append(message)

    def apply(self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int]) -> None:
        for ticket in tickets:
            self._count([self.pushed.pop((ticket.worker, ticket.number))])

    def drop(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.pushed.pop((ticket.worker, ticket.number), None)

    def cut(self, reason: str) -> None:
        self.cut_phases.add(self.coordinator.phase)

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster) -> None:
        self.traces.append((policy, cluster, []))

    def record(self, event: Event, decisions: Decisions) -> None:
        self.traces[-1][2].append(Entry(event, decisions))

    def wake(self, time_s: float) -> None:
        raise AssertionError("no policy here asks for an alarm")

    # -- the world -------------------------------------------------------------------------------------------------

    def run(self, events: dict[int, str], limit: int = 100_000) -> None:
        """Let workers act in random order; `events` maps ticks to "switch SPEC" or "kill RANK"."""
        while any(w.alive and not w.finished for w in self.workers.values()):
            self.ticks += 1
            if self.ticks in events:
                self._event(*events[self.ticks].split())
            busy = [w for w in self.workers.values() if w.alive and not w.finished]
            able = [w for w in busy if self._able(w)]
            assert able or not busy, f"deadlock at tick {self.ticks}: {self.describe()}"
            assert self.ticks < limit, f"no end: {self.describe()}"
            if able:
                self._act(self.random.choice(able))

    def describe(self) -> str:
        c = self.coordinator
        head = f"phase {c.phase} {c.policy.spec} epoch {c.job.epoch} left {c.job.workload.left}"
        workers = (f"{w.rank}: wants {w.wants} inbox {list(w.inbox)} {w.phase}" for w in self.workers.values())
        return "\n  ".join([head, *workers])

    def traced(self) -> list[Trace]:
        return [Trace(Header(policy.spec, cluster), tuple(entries)) for policy, cluster, entries in self.traces]

    def _event(self, what: str, argument: str) -> None:
        if what == "switch":
            self.coordinator.switch(parse(argument))
        elif self.workers[int(argument)].alive and not self.workers[int(argument)].finished:
            self.workers[int(argument)].alive = False
            self.coordinator.lost(int(argument), "died")

    def _count(self, leases: list[Lease]) -> None:
        for lease in leases:
            for position in range(lease.start, lease.stop):
                self.applied[lease.epoch, position] += 1
        leases.clear()

    def _able(self, w: FakeWorker) -> bool:
        if w.wants is None:
            return bool(w.inbox)
        arrived = self.collectives.setdefault(w.wants, set())
        members = w.phase.members if w.phase else ()
        cut = w.phase is not None and w.phase.number in self.cut_phases
        return w.rank not in arrived or cut or all(m in arrived or not self.workers[m].alive for m in members)

    def _act(self, w: FakeWorker) -> None:
        if w.wants is None:
            self._resume(w, w.inbox.popleft())
        elif w.rank not in self.collectives[w.wants]:
            self.collectives[w.wants].add(w.rank)
        else:
            self._resume(w, self._outcome(w))

    def _outcome(self, w: FakeWorker) -> bool:
        """A collective succeeds if all arrived, even if one died behind its arrival; then all have contributed."""
        assert w.wants is not None
        assert w.phase is not None
        if w.wants not in self.outcomes:
            success = self.collectives[w.wants] >= set(w.phase.members)
            self.outcomes[w.wants] = success
            contributors = w.phase.contributors if w.wants[0] == "align" else w.phase.members
            for member in w.phase.members if success else ():
                if member in contributors:
                    self._count(self.workers[member].held)
                self.workers[member].held.clear()
        return self.outcomes[w.wants]

    def _resume(self, w: FakeWorker, answer: object) -> None:
        try:
            w.wants = w.life.send(answer)
        except StopIteration:
            w.finished = True
