"""A phase with local steps, under a policy that the coordinator runs: workers step by themselves, and the policy says
when they meet.

An exchange is a collective of all members of the phase, in the order in which they are told; who has no part in it
contributes nothing and keeps its own. Once a member is lost no exchange succeeds any more, so the phase ends; what only
replicas of lost workers have seen is processed again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Exchange, LeftReason, Policy, Proceed, Sync, Ticket
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member, Offers, Ranks
from polyrhythm.runtime.coordinator.phases.parameter_server import ParameterServerPhase
from polyrhythm.runtime.coordinator.phases.rank_progress import count_samples
from polyrhythm.runtime.wire.protocol import (
    MOST_AHEAD,
    Accepted,
    CollectiveFailed,
    Halt,
    Halted,
    LocalStepDone,
    Skipped,
    TakePart,
    ToCoordinator,
    TookPart,
)

FIRST_LEAD = 2
"""Mini-batches that a worker that waits for no answer has in advance at first."""


class LocalStepPhase(ParameterServerPhase):
    """Runs one policy over local steps, one event at a time.

    To stop, and at the end of an epoch, it lets every step in flight finish and then has all replicas meet once more.

    Under a policy whose workers go on without an answer they have mini-batches in advance, twice as many whenever one
    has run out of them. Such a worker stops when a `Halt` reaches it; until then its reports are answered in the books
    only. What it had in advance and has not processed goes to others.
    """

    on_workers: ClassVar[bool] = True
    admits: ClassVar[bool] = False
    exchange: ClassVar[Exchange] = "replicas"

    def __init__(self, number: int, job: Job, policy: Policy[Any], cluster: Cluster) -> None:
        super().__init__(number, job, policy, cluster)
        self._answers = policy.traits.cancels
        self._waits = policy.traits.waits
        self._leads: dict[int, int] = {}
        self._halting: set[int] = set()
        """Workers that a `Halt` is on its way to."""
        self._members: tuple[int, ...] = ()
        self._unmerged: defaultdict[int, list[SampleRange]] = defaultdict(list)
        """Positions that only the replica of one worker has seen."""
        self._merges = 0
        self._open: dict[int, dict[int, list[SampleRange]]] = {}
        """What each worker has put into exchanges that not all have completed."""
        self._completed: defaultdict[int, set[int]] = defaultdict(set)
        """Workers that have completed such an exchange."""
        self._unanswered: defaultdict[int, set[int]] = defaultdict(set)
        self._closing: int | None = None
        self._lost: dict[int, LeftReason] = {}
        self._collective_failed: set[int] = set()
        self._told: dict[int, int] = {}
        """Exchanges that a worker says that it has completed, which a coordinator before this one had asked for."""
        self._over = False
        self._cut = ""
        self._awaited: set[int] = set()

    # -- what the coordinator asks ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._members, self._closing = self._job.present, None
        super().start()

    def moved(self, worker: int, message: LocalStepDone) -> None:
        member = self._job.members[worker]
        member.step = None
        sample_range = member.sample_ranges.popleft()
        self._widen_lead(worker, member)
        self._unmerged[worker].append(sample_range)
        self._job.samples += sample_range.samples
        if self._answers:
            self._job.effects.send(worker, Accepted(message.number))
        report, _ = self._book(worker, message, staleness=0)
        if not self._stopping:
            self._driver.tell(report)
            return
        self._driver.untold[worker] += 1
        self._book_next(worker)
        self._close_if_still()

    def refusal(self, worker: int, message: ToCoordinator) -> str:
        if isinstance(message, TookPart) and message.number not in self._unanswered.get(worker, ()):
            return f"for exchange {message.number}, in which it has no part"
        if isinstance(message, Halted) and worker not in self._halting:
            return "and nobody has asked it to"
        return super().refusal(worker, message)

    def skipped(self, worker: int, message: Skipped) -> None:
        super().skipped(worker, message)
        if self._stopping:
            self._book_next(worker)
        self._close_if_still()

    def halted(self, worker: int, message: Halted) -> None:
        """It stands: what it was granted and has not processed goes to others."""
        del message
        member = self._job.members[worker]
        self._halting.discard(worker)
        self._job.take_back(member)
        member.step = None
        if self._stopping:  # for the policy it still runs; `finish` cancels that step
            self._close_if_still()
        elif worker in self._job.ledger.accounts:  # else it was out of data before the word came to it
            self._driver.stopped(worker, self._job.clock())

    def merged(self, worker: int, message: TookPart) -> None:
        self._unanswered[worker].discard(message.number)
        self._completed[message.number].add(worker)
        if self._is_answered(message.number):
            self._open.pop(message.number, None)
            self._completed.pop(message.number)
            if not self._broken and not self._open:
                self._job.settled()
        self._cut_if_due()
        self._close_if_still()

    def _is_answered(self, number: int) -> bool:
        """Whether nobody who can is still to take part; looked at one by one only if all have, or some cannot."""
        if not self._broken and len(self._completed[number]) < len(self._members):
            return False
        return not any(number in self._unanswered[other] for other in self.live)

    def collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        """An exchange has failed here; this worker does nothing more until a new phase."""
        del message
        self._collective_failed.add(worker)
        self._unanswered.pop(worker, None)
        self._halting.discard(worker)
        self._job.members[worker].step = None
        self.request_stop()
        self._cut_if_due()

    def returned(self, worker: int, message: Returned) -> None:
        """What is in its replica nobody processes again; of some of it others may have nothing."""
        self._take(message.processed)
        for number, sample_ranges in message.offers:
            self._open.setdefault(number, {})[worker] = self._take(sample_ranges)
        self._unmerged[worker] = self._take(message.alone)
        self._merges = max(self._merges, message.merges)
        self._told[worker] = message.merges
        for number in self._open:
            self._completed[number] = {other for other, merges in self._told.items() if merges >= number}
        self._collective_failed.add(worker)

    def _take(self, sample_ranges: Sequence[SampleRange]) -> list[SampleRange]:
        """Those of these positions that were left, which count as processed from here on."""
        taken = self._job.workload.take(sample_ranges)
        self._job.samples += count_samples(taken)
        return taken

    @property
    def outstanding(self) -> tuple[SampleRange, ...]:
        """Granted, or in the replica of one worker only, which may be lost with it."""
        return *super().outstanding, *self._unsettled

    @property
    def unsettled_samples(self) -> int:
        return count_samples(self._unsettled)

    @property
    def _unsettled(self) -> list[SampleRange]:
        offered = (ranges for offers in self._open.values() for ranges in offers.values())
        return [sample_range for ranges in (*offered, *self._unmerged.values()) for sample_range in ranges]

    @property
    def offers(self) -> Offers:
        return {
            worker: tuple((number, tuple(offers[worker])) for number, offers in self._open.items() if worker in offers)
            for worker in self._members
        }

    def lost(self, worker: int, member: Member, reason: LeftReason) -> None:
        """A worker is gone; the policy hears of it once it is clear which exchanges had its part."""
        if worker not in self._members:  # it has come for the next phase
            return
        self._job.give_back(member.sample_ranges)
        self._lost[worker] = reason
        self._halting.discard(worker)
        own = self._unanswered.pop(worker, set())
        # One whose script has left its loop has done its part of what it has completed; the others still may.
        open_to_others = {number for other in self.live for number in self._unanswered[other]}
        self._awaited = open_to_others - own if reason == "removed" else set()
        self._cut = f"rank {worker} is gone"
        self.request_stop()
        self._cut_if_due()

    def exhausted(self, worker: int) -> None:
        super().exhausted(worker)
        self._close_if_still()

    def take_back(self, early: Ranks) -> None:
        self._lost = {worker: reason for worker, reason in self._lost.items() if worker not in early}

    def request_stop(self) -> None:
        super().request_stop()
        if not self._waits:
            running = (worker for worker in self.live if self._job.members[worker].step is not None)
            self.stop(tuple(worker for worker in running if worker not in self._halting))
        self._close_if_still()

    def close(self) -> None:
        if self._closing is None and not self._broken:
            self._send_merge(Sync(self._members, "deltas"))
            self._closing = self._merges

    @property
    def closed(self) -> bool:
        return self._closing is not None and not self._broken and self._quiet

    @property
    def standing(self) -> bool:
        return self._stopping and (self.closed or (self._broken and self._quiet))

    @property
    def sound(self) -> tuple[int, ...]:
        return tuple(worker for worker in self.live if worker not in self._collective_failed)

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(worker for worker in self._members if worker in self._job.members and worker not in self._lost)

    @property
    def apart(self) -> tuple[int, ...]:
        """Live members whose replicas differ, so that the job's state is their mean.

        Who has missed an exchange in which others have all that it had takes over what these have.
        """
        if self.closed:
            return ()
        if self.sound:
            return self.sound
        known = max((number for number in self._open if self._completed[number].intersection(self.live)), default=0)
        ahead = tuple(worker for worker in self.live if worker in self._completed[known])
        behind = [worker for worker in self.live if worker not in ahead]
        return self.live if not known or any(map(self._seen_alone, behind)) else ahead

    def may_end(self) -> bool:
        """Once all replicas have met, or to go on with what was given back; not on the way to a new phase."""
        if self._stopping:
            return False
        if not self._job.workload.left:
            self.close()
        return bool(self._job.workload.left) or self.closed

    def unsynchronised(self) -> dict[int, tuple[SampleRange, ...]]:
        return {worker: tuple(self._seen_alone(worker)) for worker in self.live}

    def finish(self) -> None:
        """Settle with the policy what counted, and give back what did not; what it decides now is left to the next."""
        self._over = True
        for worker, reason in self._lost.items():
            alone = self._seen_alone(worker)
            self._job.give_back(alone)
            self._job.samples -= count_samples(alone)
            if worker in self._job.ledger.accounts:
                self._driver.leave(worker, self._job.clock(), reason)
        super().finish()

    # -- what the policy decides (see `Effects`) -------------------------------------------------------------------

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        if decision.what == "gradients":
            raise PolicyError(
                "Sync wants the gradients of steps that workers have made on replicas already; Sync parameters or "
                "deltas, or decide in the placement 'every_rank'"
            )
        self._job.version += 1
        if not self._over:
            self._send_merge(decision)

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """As above, until the phase is over: then nobody finds a mini-batch."""
        if self._over:
            self._driver.finish(ticket.worker)
            return False
        if ticket.worker in self._halting:
            member = self._job.members[ticket.worker]
            member.step = member.granted = ticket.number
            return True
        return super().start_step(ticket, decision)

    def stop(self, workers: tuple[int, ...]) -> None:
        for worker in workers if not self._over else ():
            self._halting.add(worker)
            self._job.effects.send(worker, Halt())

    # -- details ---------------------------------------------------------------------------------------------------

    def _lead(self, worker: int) -> int:
        return 0 if self._waits else self._leads.get(worker, FIRST_LEAD)

    def _widen_lead(self, worker: int, member: Member) -> None:
        """The worker has run out of mini-batches, and waits for the answer to this report after all."""
        if not (self._waits or member.sample_ranges or worker in self._halting):
            self._leads[worker] = min(2 * self._lead(worker), MOST_AHEAD)

    def _book_next(self, worker: int) -> None:
        """The worker goes on until the word to stop reaches it, and its next report needs a step in the books."""
        if worker in self._halting:
            self._driver.start_again(Proceed((worker,), self.exchange), self._job.clock())

    @property
    def _broken(self) -> bool:
        return bool(self._lost or self._collective_failed)

    @property
    def _quiet(self) -> bool:
        standing = all(self._job.members[w].step is None and not self._unanswered.get(w) for w in self.live)
        return standing and not self._halting

    def _seen_alone(self, worker: int) -> Sequence[SampleRange]:
        live = set(self.live)
        failed = [offers for number, offers in self._open.items() if not live & self._completed[number]]
        return [
            *(sample_range for offers in failed for sample_range in offers.get(worker, ())),
            *self._unmerged.get(worker, ()),
        ]

    def _send_merge(self, sync: Sync) -> None:
        self._merges += 1
        parts = {*sync.workers, *(sync.adopters or ())}
        self._open[self._merges] = {worker: self._unmerged.pop(worker, []) for worker in parts}
        self._job.merging()
        for worker in (sound := self.sound):
            self._unanswered[worker].add(self._merges)
        if sync.workers == self._members:  # whom each of them knows: the list would be most of what all are sent
            sync = replace(sync, workers=())
        self._job.effects.send_all(sound, TakePart(self._merges, sync))

    def _cut_if_due(self) -> None:
        """End the exchanges in which others would wait for a lost worker for ever."""
        if self._cut and not any(self._awaited & self._unanswered[worker] for worker in self.live):
            self._job.effects.cut(self._cut)
            self._cut = ""

    def _close_if_still(self) -> None:
        if self._stopping and self._quiet:
            self.close()
