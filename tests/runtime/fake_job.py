"""A whole job in memory: the real coordinator, and workers that do what a session does, interleaved at random.

A worker is a generator. It yields a key to take part in a collective with that name (the answer tells whether it
succeeded), or None to wait for the next message. What it has `offered` there is in the parameters of all if it did.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.core import Cluster, Decisions, Entry, Event, Header, Joined, LeftReason, Policy, Ticket, Trace
from polyrhythm.core.workload import SampleRange
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot
from polyrhythm.runtime.checkpoint.returned import JobState
from polyrhythm.runtime.coordinator.members.proposal import nobody
from polyrhythm.runtime.coordinator.recovery.recoverable import RecoverableCoordinator
from polyrhythm.runtime.wire import protocol as control
from polyrhythm.runtime.wire.shard_protocol import GroupSettings
from tests.runtime.fake_worker import ALONE, FakeWorker


def at_ticks(what: str, arguments: Mapping[int, object]) -> dict[int, str]:
    """Events of one kind for `FakeJob.run`, from ticks and their arguments."""
    return {tick: f"{what} {argument}" for tick, argument in arguments.items()}


@dataclass
class Settled:
    """A collective that has succeeded: who knows it, what each had offered, and what counts since then."""

    told: set[int] = field(default_factory=set)
    offers: dict[int, list[SampleRange]] = field(default_factory=dict)
    counted: list[SampleRange] = field(default_factory=list)


class FakeJob:
    """Office and world of the coordinator."""

    against: Mapping[str, int] = {}  # policies that a script cannot follow, and which rank says so

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
        resumed: JobSnapshot | None = None,
    ):
        self.tick_s = 0.001 if seed % 2 else 1.0
        self.samples, self.batch_size, self.epochs = samples, batch_size, epochs
        self.random, self.skip, self.leave = random.Random(seed), skip, leave
        self.ticks, self.ahead = 0, ahead
        self.alarms: list[float] = []
        self.snapshots: list[tuple[JobSnapshot, Counter[tuple[int, int]]]] = []
        self.remarks: list[str] = []
        self.given_up = ""
        self.losses: list[tuple[int, LeftReason]] = []
        self.traces: list[tuple[Policy[Any], Cluster, list[Entry]]] = []
        self.states: list[str] = []
        self.pushed: dict[tuple[int, int], SampleRange] = {}
        self.applied: Counter[tuple[int, int]] = Counter()
        self.before_trial = -1, Counter[tuple[int, int]]()
        self.collectives: dict[tuple[Any, ...], set[int]] = {}
        self.outcomes: dict[tuple[Any, ...], bool] = {}
        self.settled: dict[tuple[Any, ...], Settled] = {}
        self.undone = self.missed = self.untold_skipped = 0
        self.behind: dict[tuple[Any, ...], set[int]] = {}
        """Who has missed a collective that others know to have succeeded."""
        self.inside: defaultdict[int, set[int]] = defaultdict(set)
        self.fresh: set[int] = set()
        """Workers that have the newest state, or what they have made of it."""
        self.back: set[int] = set()
        """Ranks that have come back, and have nothing of what was theirs."""
        self.begun = False
        self.refusals: dict[int, str] = {}
        """What ranks say about every policy that is proposed."""
        self.records: dict[tuple[tuple[Any, ...], int], control.MeasuredStep] = {}
        self.cuts: dict[int, int] = {}
        self.coordinator = RecoverableCoordinator(parse_policy(policy), workers, self, lambda: self.clock, epochs)
        if resumed is not None:
            self.coordinator.plan(parse_policy(resumed.policy), epochs)
            self.coordinator.resume(resumed)
        self.workers: dict[int, FakeWorker] = {}
        self.dead: dict[int, FakeWorker] = {}
        self.all_there = False
        self.mail: list[tuple[int, control.ToWorker]] = []
        for rank in range(workers):
            self.coordinator.job.connect(rank)
        self.workers |= {rank: FakeWorker(self, rank, ahead) for rank in range(workers)}
        for rank, message in self.mail:
            self.workers[rank].inbox.append(message)
        self.mail.clear()
        self.all_there = True

    @property
    def clock(self) -> float:
        return self.ticks * self.tick_s

    def measured(self, rank: int) -> tuple[float, float, float | None]:
        """Of the step that a worker has just made: seconds to compute and to transfer, and its loss."""
        return 1.0, 0.0, None

    # -- office ----------------------------------------------------------------------------------------------------

    def send(self, worker: int, message: control.ToWorker | JobState) -> None:
        if isinstance(message, control.Phase) and message.back_to is not None:
            self._forget(self.coordinator.job.epoch, message.back_to)
        if isinstance(message, control.Phase) and message.keeps:
            self.before_trial = self.coordinator.job.epoch, Counter(self.applied)
        if isinstance(message, control.Ended):
            self.workers[worker].ended, self.workers[worker].alive = message.reason, False
        assert not isinstance(message, JobState), "nobody asks for it"
        if worker in self.workers and self.all_there:
            self.workers[worker].inbox.append(message)
        else:
            self.mail.append((worker, message))

    def send_all(self, workers: Sequence[int], message: control.TakePart) -> None:
        for worker in workers:
            self.send(worker, message)

    def apply(
        self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int], settings: GroupSettings
    ) -> None:
        self.fresh.clear()
        for ticket in tickets:
            self._count([self.pushed.pop((ticket.worker, ticket.number))])

    def drop(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.pushed.pop((ticket.worker, ticket.number), None)

    def cut(self, reason: str, after: int = 0) -> None:
        self.cuts[self.coordinator.phase] = after

    def propose(self, number: int, policy: str) -> None:
        for rank, worker in self.workers.items():
            if worker.alive and not worker.finished:
                self.coordinator.choice.confirmed(rank, control.Confirmed(number, self.refusals.get(rank, "")))

    def give_up(self, reason: str) -> None:
        """The job ends, which it may do for want of anybody who has its state."""
        there = self.coordinator.job.members
        assert not any(self.workers[rank].alive for rank in (self.fresh - self.back).intersection(there)), reason
        self.given_up = reason
        for worker in self.workers.values():
            worker.alive = False

    def tell_loss(self, worker: int, reason: LeftReason) -> None:
        self.losses.append((worker, reason))

    def keep(self, snapshot: JobSnapshot) -> None:
        """All stand: what is in no parameter is in the workload, and nothing else."""
        self.snapshots.append((snapshot, +self.applied))

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, state: str = "") -> None:
        self.traces.append((policy, cluster, []))
        self.states.append(state)

    def record(self, event: Event, decisions: Decisions) -> None:
        if isinstance(event, Joined) and {*event.workers} == {*self.coordinator.job.ledger.accounts}:
            assert {*event.workers} == {*self.coordinator.job.present}, f"all come together: {self.describe()}"
        self.traces[-1][2].append(Entry(event, decisions))

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def wake(self, time_s: float) -> None:
        self.alarms.append(time_s)

    # -- where the state is ----------------------------------------------------------------------------------------

    def keep_state(self, keepers: Sequence[int]) -> None:
        """The job goes on from what these have kept."""
        self.fresh, self.begun = set(keepers), True

    def move_state(self, rank: int, phase: control.Phase) -> None:
        """A member is about to have entered: what it has been given was the newest state."""
        nobody = (
            not any(self.workers[rank].alive for rank in self.fresh - self.back) and not self.coordinator.job.samples
        )
        if not self.begun or nobody:  # before the first step all that is lost with a state is how it was set at first
            self.fresh, self.begun = set(phase.contributors), True
        assert self.fresh.issuperset(phase.contributors), f"{self.fresh}: {self.describe()}"
        if phase.state == "pull" or phase.contributors:
            self.fresh.add(rank)
            self.back.discard(rank)
            for key in self.behind if phase.contributors else ():
                self.settled[key].told.add(rank)
        elif phase.state == "upload" and rank == phase.source:
            assert rank in self.fresh or not self.fresh, f"{self.fresh}: {self.describe()}"

    def steps_begin(self) -> None:
        """All have entered a phase, and have the state."""
        self.behind.clear()

    # -- the world -------------------------------------------------------------------------------------------------

    def run(self, events: dict[int, str], limit: int = 100_000) -> None:
        """Let workers act in random order; `events` maps ticks to what happens then, as "kill RANK"."""
        while any(w.alive and not w.finished for w in self.workers.values()):
            self.ticks += 1
            if self.ticks in events:
                self._event(*events[self.ticks].split())
            self._ring()
            busy = [w for w in self.workers.values() if w.alive and not w.finished]
            able = [w for w in busy if self._able(w)]
            assert able or not busy or self.alarms, f"deadlock at tick {self.ticks}: {self.describe()}"
            assert self.ticks < limit, f"no end: {self.describe()}"
            if able:
                self._act(self.random.choice(able))

    def _ring(self) -> None:
        due = [time_s for time_s in self.alarms if time_s <= self.clock]
        self.alarms = [time_s for time_s in self.alarms if time_s > self.clock]
        for _ in due:
            self.coordinator.alarm()

    def describe(self) -> str:
        c = self.coordinator
        head = f"phase {c.phase} {c.policy.spec} epoch {c.job.epoch} left {c.job.workload.left}"
        return "\n  ".join([head, *(f"{w.rank}: {w.wants} {[*w.inbox]} {w.phase}" for w in self.workers.values())])

    def traced(self) -> list[Trace]:
        headers = (
            Header(p.recorded, c, {"state": state}) for (p, c, _), state in zip(self.traces, self.states, strict=True)
        )
        return [Trace(header, tuple(entries)) for header, (_, _, entries) in zip(headers, self.traces, strict=True)]

    def _event(self, what: str, argument: str) -> None:
        if what == "switch":
            self.coordinator.choice.propose(parse_policy(argument), nobody)
        elif what == "save":
            self.coordinator.save()
        elif what == "drain":
            self.workers[int(argument)].drained = True
        elif what == "diverge":
            worker = self.workers[int(argument)]
            if worker.phase is not None and worker.alive and not worker.finished:
                message = control.Diverged(worker.phase.number, "is nan", rollback=True)
                self.coordinator.receive(worker.rank, message)
        elif what == "join" and int(argument) not in self.coordinator.job.members:
            self.coordinator.job.connect(int(argument))
            self._bury(int(argument))
            newcomer = FakeWorker(self, int(argument), self.ahead)
            newcomer.inbox.extend(message for rank, message in self.mail if rank == newcomer.rank)
            self.mail.clear()
            self.workers[newcomer.rank] = newcomer
        elif what == "kill" and self.workers[int(argument)].alive and not self.workers[int(argument)].finished:
            self._kill(self.workers[int(argument)])

    def _bury(self, rank: int) -> None:
        """Another worker takes the place of one that was there before; what that one has offered may still count."""
        if rank in self.workers:
            self.dead[rank] = self.workers.pop(rank)
        self.back.add(rank)
        for settled in self.settled.values():
            settled.told.discard(rank)

    def _kill(self, w: FakeWorker) -> None:
        w.alive = False
        self.untold_skipped += w.untold_skipped
        for key in [other.wants for other in self.workers.values() if other.alive and other.wants in self.settled]:
            assert key is not None
            if key in self.settled and not any(self.workers[rank].alive for rank in self.settled[key].told):
                self._may_undo(key)
        self._undo_unknown()
        self.coordinator.lost(w.rank, "died")

    def _undo_unknown(self) -> None:
        for key in [key for key in self.behind if not self._is_known(key)]:
            self._undo(key)

    def _is_known(self, key: tuple[Any, ...]) -> bool:
        """Whether somebody knows that a collective has succeeded, or will, or has sent the state in which it is."""
        waiting = any(w.alive and w.wants == key for w in self.workers.values())
        return waiting or any(self.workers[rank].alive or self._has_sent(rank) for rank in self.settled[key].told)

    def _has_sent(self, rank: int) -> bool:
        """Whether its state still arrives: not in a group that others have given up, nor where the exchange failed."""
        entered = self.workers[rank].phase
        key = ("align", entered.number if entered is not None else 0)
        if self.outcomes.get(key) and any(w.alive and w.wants == key for w in self.workers.values()):
            return True  # it has gone on, and others are about to
        kind, *phase = self.workers[rank].wants or ("",)
        sent = kind == "align" and rank in self.collectives.get((kind, *phase), ())
        return sent and all(self.outcomes.get((what, *phase), True) for what in ("build", "align"))

    def _may_undo(self, key: tuple[Any, ...]) -> None:
        """Only the dead know that this collective has succeeded: for those alive it may fail all the same."""
        if self.random.random() >= 0.5:
            self._undo(key)

    def _undo(self, key: tuple[Any, ...]) -> None:
        self.undone += 1
        settled, self.outcomes[key] = self.settled.pop(key), False
        behind = self.behind.pop(key, set())
        self.fresh.update(rank for rank in behind if self.workers[rank].alive)
        for rank, offer in settled.offers.items():
            self.workers[rank].held += offer if rank not in behind else []
        for sample_range in settled.counted:
            self.applied.subtract(
                (sample_range.epoch, position) for position in range(sample_range.start, sample_range.stop)
            )
        self.applied = +self.applied

    def _forget(self, epoch: int, back_to: int) -> None:
        """The job has gone back to the start of this epoch, or to where a trial has begun in it."""
        if back_to < 0 and self.before_trial[0] == epoch:
            self.applied = Counter(self.before_trial[1])
            return
        self.applied = Counter({place: count for place, count in self.applied.items() if place[0] != epoch})

    def _count(self, sample_ranges: list[SampleRange]) -> None:
        for sample_range in sample_ranges:
            for position in range(sample_range.start, sample_range.stop):
                self.applied[sample_range.epoch, position] += 1
        sample_ranges.clear()

    def _able(self, w: FakeWorker) -> bool:
        if w.wants is None:
            return bool(w.inbox)
        if w.wants == ALONE:
            return True
        arrived = self.collectives.setdefault(w.wants, set())
        members = w.phase.members if w.phase else ()
        cut = w.phase is not None and w.completed >= self.cuts.get(w.phase.number, math.inf)
        notices = w.wants[0] != "build"  # who waits for a member that never connects does not see that it is dead
        gone = [m for m in members if m not in arrived and not (notices and not self.workers[m].alive)]
        return w.rank not in arrived or cut or not gone

    def _act(self, w: FakeWorker) -> None:
        if w.wants is None:
            self._resume(w, w.inbox.popleft())
        elif w.wants == ALONE:
            self._resume(w, True)
        elif w.rank not in self.collectives[w.wants]:
            self.collectives[w.wants].add(w.rank)
        else:
            self._resume(w, self._outcome(w))

    def _outcome(self, w: FakeWorker) -> bool:
        """A collective succeeds if all arrived, even if one died after its arrival; then all have contributed."""
        assert w.wants is not None
        assert w.phase is not None
        if w.wants not in self.outcomes:
            success = self.collectives[w.wants] >= set(w.phase.members)
            self.outcomes[w.wants] = success
            self._undo_unknown()
            contributors = w.phase.contributors if w.wants[0] == "align" else w.phase.members
            if success:
                self.settled[w.wants] = Settled()
            for member in w.phase.members if success else ():
                there = self.workers[member]
                self._settle(there if w.wants in there.offers else self.dead[member], w.wants, member in contributors)
        if not self.outcomes[w.wants] or self._misses(w, w.wants):
            return False
        self.settled[w.wants].told.add(w.rank)
        return True

    def _misses(self, w: FakeWorker, key: tuple[Any, ...]) -> bool:
        """A sum of gradients may fail here once a member is gone, and have succeeded for others."""
        assert w.phase is not None
        gone = any(not self.workers[rank].alive for rank in w.phase.members)
        known = any(self.workers[rank].alive for rank in self.settled[key].told)
        if key[0] != "step" or not gone or not known or self.random.random() < 0.5:
            return False
        self.missed += 1
        self.behind.setdefault(key, set()).add(w.rank)
        self.fresh.discard(w.rank)
        return True

    def _settle(self, member: FakeWorker, key: tuple[Any, ...], contributes: bool) -> None:
        """What a member has offered is in the parameters of all, or given up."""
        offer = [sample_range for sample_range in member.offers.pop(key) if sample_range in member.held]
        member.held = [sample_range for sample_range in member.held if sample_range not in offer]
        settled = self.settled[key]
        settled.offers[member.rank] = offer
        if contributes:
            # What was given to others when this worker left its loop counts as theirs.
            stale = [sample_range for sample_range in offer if sample_range in member.stale]
            given = [sample_range for sample_range in stale if self.applied[sample_range.epoch, sample_range.start]]
            counts = [sample_range for sample_range in offer if sample_range not in given]
            settled.counted += counts
            self._count(counts)

    def _resume(self, w: FakeWorker, answer: object) -> None:
        try:
            w.wants = w.life.send(answer)
        except StopIteration:
            w.finished = True
