"""A whole job in memory: the real coordinator, and workers that do what a session does, interleaved at random.

A worker is a generator. It yields a key to take part in a collective with that name (the answer tells whether it
succeeded), or None to wait for the next message. What it has `offered` there is in the parameters of all if it did.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from polyrhythm.core import Cluster, Decisions, Entry, Event, Header, Policy, Sync, Ticket, Trace
from polyrhythm.core.workload import Lease
from polyrhythm.policies import parse
from polyrhythm.runtime import control
from polyrhythm.runtime.coordinator import Coordinator
from polyrhythm.runtime.schedule import Schedule
from polyrhythm.runtime.strides import Strides
from polyrhythm.runtime.venue import venue_of

Steps = Generator[tuple[Any, ...] | None, Any, None]


class Travelling(NamedTuple):
    """An exchange that is under way, and what this rank has put into it."""

    due: int
    started: int
    fragment: tuple[int, int] | None
    offer: list[Lease]


class FakeWorker:
    """One rank. `held` are positions that only its own replica or gradient has seen so far."""

    def __init__(self, job: "FakeJob", rank: int, ahead: int) -> None:
        self.job, self.rank, self.ahead = job, rank, ahead
        self.alive, self.finished, self.poisoned, self.left = True, False, False, False
        self.inbox: deque[control.ToWorker] = deque()
        self.held: list[Lease] = []
        self.offers: dict[tuple[Any, ...], list[Lease]] = {}
        self.travelling: list[Travelling] = []
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
        self.measures = policy.traits.venue == "replicated"
        if venue_of(policy) == "lockstep":
            self.schedule = Schedule(policy, self.job.traces[-1][1], phase.members, self.rank)
        if phase.contributors and not (yield from self._exchange(("align", phase.number), self.held)):
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

    def _exchange(self, key: tuple[Any, ...], offer: list[Lease]) -> Generator[Any, Any, bool]:
        """Take part in a collective; whether it succeeded."""
        self.offers[key] = list(offer)
        return bool((yield key))

    def _lockstep(self, start: control.Lockstep, epoch: int) -> Steps:
        assert self.phase is not None
        self.plan = Strides(start.ranges, len(self.phase.members), start.batch_size)
        self.schedule.start(self.plan)
        self.travelling.clear()
        while not self.schedule.done:
            if self._leaves():
                self.left = True
                return
            stop = yield from self._step_in_lockstep(self.schedule.step)
            if stop or self.poisoned:
                return
        self._tell(control.AtEnd(epoch))

    def _step_in_lockstep(self, step: int) -> Generator[Any, Any, bool]:
        """Whether there is a stop behind it."""
        last, gradients = step == self.plan.steps - 1, self.schedule.exchange == "gradients"
        batch = self.schedule.batch()
        samples = sum(lease.samples for lease in batch)
        self.held.extend(batch)
        if self.measures:
            self._tell(control.Measured(step, samples, self.job.random.random()))
        token = (yield None) if self.measures or not last else control.Token(step, stop=False)
        assert isinstance(token, control.Token), token
        assert token.step == step, (token, step)
        if self.measures and token.records is None:
            self._poison(step + 1)
            return False
        sync = self.schedule.advance(token.records)
        self.reached, self.shared = 0, False
        if gradients:
            if not (yield from self._exchange(self._key(step), self.held)):
                self.held.clear()
                self._poison(step)
                return False
            self.reached = step + 1
        elif not (yield from self._combine(step, sync, batch, token.stop or last)):
            self._poison(step + 1, self.reached, self.shared)
            return False
        self._tell(control.Stepped(step, samples, 1.0, self.reached, self.shared))
        return token.stop

    def _combine(
        self, step: int, sync: Sync | None, batch: Sequence[Lease], closing: bool
    ) -> Generator[Any, Any, bool]:
        """Carry out what was decided; whether every exchange succeeded."""
        if sync is not None and sync.what == "gradients":
            self.shared = yield from self._exchange(self._key(step, "share"), list(batch))
            if not self.shared:
                return False
        if not (yield from self._merge(lambda t: t.due <= step)):
            return False
        equal = False
        if sync is not None and sync.what != "gradients":
            if not (yield from self._merge(lambda t: t.fragment == sync.fragment or not sync.fragment)):
                return False
            self.travelling.append(Travelling(step + sync.delay, step, sync.fragment, list(self.held)))
            equal = not sync.delay and not sync.fragment
            if not (yield from self._merge(lambda t: t.due <= step)):
                return False
        if not closing or equal:
            return True
        if not (yield from self._merge(lambda t: True)):
            return False
        if not (yield from self._exchange(self._key(step, "mean"), self.held)):
            return False
        self.reached = step + 1
        return True

    def _merge(self, which: Callable[[Travelling], bool]) -> Generator[Any, Any, bool]:
        """Complete exchanges under way; whether they succeeded."""
        for one in [t for t in self.travelling if which(t)]:
            self.travelling.remove(one)
            if not (yield from self._exchange(self._key(one.started, "sync"), one.offer)):
                return False
            self.reached = max(self.reached, one.started + 1)
        return True

    def _key(self, step: int, kind: str = "step") -> tuple[Any, ...]:
        assert self.phase is not None
        return kind, self.phase.number, self.plan.ranges, step

    def _leaves(self) -> bool:
        return self.job.random.random() < self.job.leave

    def _poison(self, completed: int, exchanged: int = 0, shared: bool = False) -> None:
        assert self.phase is not None
        self.poisoned = True
        self._tell(control.Poisoned(self.phase.number, completed, "", exchanged, shared))

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
                self._settle(self.workers[member], w.wants, member in contributors)
        return self.outcomes[w.wants]

    def _settle(self, member: FakeWorker, key: tuple[Any, ...], contributes: bool) -> None:
        """What a member has offered is in the parameters of all, or given up."""
        offer = [lease for lease in member.offers.pop(key) if lease in member.held]
        member.held = [lease for lease in member.held if lease not in offer]
        if contributes:
            self._count(offer)

    def _resume(self, w: FakeWorker, answer: object) -> None:
        try:
            w.wants = w.life.send(answer)
        except StopIteration:
            w.finished = True
