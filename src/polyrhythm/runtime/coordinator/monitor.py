"""What somebody outside can be told of a job: counts that its books do not keep, its latest events, its `Status`.

It is there whether or not anybody asks, so it costs a few additions a step.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.core import Decisions, Event, Ledger, LeftReason, Policy, Report, Sync
from polyrhythm.core.workload import UNKNOWN
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import WORDS, Member
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.control_protocol import FINISHED, EventKind, JobEvent, Status, WorkerStatus
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.shard_protocol import MOST_FIGURES
from polyrhythm.telemetry import LinkBytes, Stragglers

KEPT_EVENTS = 100
"""Events that are remembered for whoever asks late."""

KEPT_LOSSES = 64
"""Mini-batches over which the loss is averaged."""

STALENESS_BITS = 16
"""Counts of staleness: the last is for 15 bits and more."""


class JobMonitor:
    """Follows what the policy is told, and what happens to the job.

    Args:
        clock: the job's, seconds.
        number: of the last event that a coordinator before this one has told of, or a later one.

    Example:
        >>> monitor = JobMonitor(lambda: 1.5)
        >>> monitor.lost(2, "died")
        >>> [(event.number, event.kind, event.text) for event in monitor.after(0)]
        [(1, 'death', 'rank 2 died')]
    """

    def __init__(self, clock: Callable[[], float], number: int = 0) -> None:
        self._clock, self._number = clock, number
        self.samples: dict[int, int] = {}
        self.losses: deque[float] = deque(maxlen=KEPT_LOSSES)
        self.reported: dict[str, dict[int, float]] = {}
        self.links = LinkBytes()
        self.leaving: set[int] = set()
        self.staleness = [0] * STALENESS_BITS
        self.staleness_sum = self.steps = self.local_steps = self.switches = 0
        self.replicas = False
        self._hosts: dict[int, str] = {}
        self._leavings: set[LeftReason] = set()
        self._local: set[int] = set()
        self._events: deque[JobEvent] = deque(maxlen=KEPT_EVENTS)
        self._phase, self._policy, self._trouble = 0, "", ""

    def heard(self, worker: int, message: Any) -> None:
        """A worker has sent something; it may have a loss, or what its script reports."""
        if (loss := getattr(message, "loss", None)) is not None:
            self.losses.append(loss)
        for name, value in (getattr(message, "figures", None) or {}).items():
            if name in self.reported or len(self.reported) < MOST_FIGURES:
                self.reported.setdefault(name, {})[worker] = value

    @property
    def figures(self) -> dict[str, float]:
        """What scripts report: the mean of the workers' latest."""
        return {name: sum(latest.values()) / len(latest) for name, latest in list(self.reported.items())}

    def record(self, event: Event, decisions: Decisions) -> None:
        self.links.record(event, decisions)
        if type(event) is Report:
            worker = event.worker
            self.samples[worker] = self.samples.get(worker, 0) + event.samples
            self.steps += 1
            if self.replicas:
                self.local_steps += 1
                self._local.add(worker)
            else:
                self.staleness_sum += event.staleness
                self.staleness[min(event.staleness.bit_length(), STALENESS_BITS - 1)] += 1
        if self.replicas:
            for decision in decisions:
                if type(decision) is Sync:
                    met = self._local.intersection((*decision.workers, *(decision.adopters or ())))
                    self._local -= met
                    self.local_steps -= len(met)

    def begin_phase(self, number: int, policy: Policy[Any], workers: int, trouble: str) -> None:
        spec, self.replicas = policy.spec, "replicas" in policy.traits.exchanges
        self._phase = number
        self._local.clear()
        if trouble != self._trouble:
            self._trouble = trouble
            self.tell("rollback", trouble)
        kind: EventKind = "start" if number == 1 else "phase" if spec == self._policy else "switch"
        self.switches += kind == "switch"
        self._policy = spec
        self.tell(kind, f"phase {number}: policy {spec} on {workers} workers")

    def joined(self, worker: int, channel: Channel) -> None:
        """Somebody connects; at the start that is nothing to tell."""
        self._hosts[worker] = host_of(channel)
        self.leaving.discard(worker)
        if self._phase:
            self.tell("join", f"rank {worker} joins", worker)

    def lost(self, worker: int, reason: LeftReason) -> None:
        """A member is gone; of one that is through there is nothing to tell."""
        self._leavings.add(reason)
        if reason != "finished":
            self.tell("left" if reason == "removed" else "death", f"rank {worker} {WORDS[reason]}", worker)

    @property
    def outcome(self) -> str:
        """How the job has ended by itself: once one worker is through, it is."""
        if not (self._hosts or self._leavings):
            return "no worker has joined"
        if "finished" in self._leavings or not self._leavings:
            return FINISHED
        return "all workers have left" if "removed" in self._leavings else "all workers have died"

    def diverged(self, reason: str) -> None:
        if reason != self._trouble:  # it is said to every worker
            self._trouble = reason
            self.tell("divergence", reason)

    def tell(self, kind: EventKind, text: str, rank: int | None = None) -> None:
        self._number += 1
        time_s = self._clock() if self._phase else 0.0  # the job's clock starts with its first phase
        self._events.append(JobEvent(self._number, time_s, kind, text, rank))

    def after(self, number: int) -> tuple[JobEvent, ...]:
        """The events after that of this number, as far as they are remembered."""
        return tuple(event for event in self._events if event.number > number)

    def workers(self, job: Job, stragglers: Stragglers, silent_s: Mapping[int, float]) -> tuple[WorkerStatus, ...]:
        """Those that are connected, with the seconds since each was heard of."""
        return tuple(
            self._worker(rank, member, job.ledger, stragglers, heard_s)
            for rank, heard_s in silent_s.items()
            if (member := job.members.get(rank)) is not None
        )

    def _worker(
        self, rank: int, member: Member, ledger: Ledger, stragglers: Stragglers, heard_s: float
    ) -> WorkerStatus:
        record, account = stragglers.records.get(rank), ledger.accounts.get(rank)
        running = account is not None and account.running is not None
        reported_s = record.since_s if record else None
        samples = self.samples.get(rank, 0)
        return WorkerStatus(
            rank,
            self._hosts.get(rank, ""),
            samples,
            reported_s,
            heard_s,
            running,
            member.at_end,
            rank in self.leaving,
            self.links.sent.get(rank, 0.0),
            self.links.received.get(rank, 0.0),
        )


def host_of(channel: Channel) -> str:
    """Where a worker is; nothing if it is where the coordinator is, or gone again."""
    with contextlib.suppress(OSError):
        return "" if channel.local else str(channel.socket.getpeername()[0])
    return ""


def job_status(
    config: JobConfig,
    coordinator: Coordinator,
    stragglers: Stragglers,
    monitor: JobMonitor,
    workers: tuple[WorkerStatus, ...],
    after: int,
    ended: str,
) -> Status:
    """All that is known; events only after that of number `after`."""
    job, following, losses = coordinator.job, coordinator.next_policy, monitor.losses
    begun = job.epoch >= 0
    return Status(
        policy=coordinator.policy.spec,
        phase=coordinator.phase,
        epoch=job.epoch,
        members=job.present,
        samples=job.samples,
        skipped=job.skipped_samples,
        version=job.version,
        applied=job.ledger.applied,
        dropped={str(reason): count for reason, count in job.ledger.dropped.items()},
        switching_to=following.spec if following else None,
        arrivals=stragglers.arrivals(),
        job=config.job,
        time_s=job.clock(),
        planned=job.planned,
        epochs=config.epochs if "epochs" in config.given else None,
        dataset_samples=job.workload.dataset_samples % UNKNOWN if begun else 0,
        done=job.done_samples if begun else 0,
        rolled_back=job.rolled_back_samples,
        repeated=job.repeated_samples,
        loss=sum(losses) / len(losses) if losses else None,
        figures=monitor.figures,
        staleness=tuple(monitor.staleness),
        staleness_sum=monitor.staleness_sum,
        steps=monitor.steps,
        local_steps=monitor.local_steps,
        replicas=monitor.replicas,
        switches=monitor.switches,
        workers=workers,
        events=monitor.after(after),
        notices=tuple(coordinator.choice.notices),
        ended=ended,
        chosen=coordinator.choice.chooser(coordinator.policy),
        policy_fixed="policy" in config.given,
        run=config.run,
    )
