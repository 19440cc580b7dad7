"""Measures a job on real workers from what its policy is told and decides; the coordinator feeds it.

A worker that stands at the end of an epoch is still live and waits, although the policy has seen it leave as finished.
In synchronous mode nobody can tell the wait for the slowest from the exchange itself: both count as idle, and the bytes
are those of a ring over n members, 2(n-1)/n messages for each of them, also for one that contributes nothing. Replicas
that servers sum up are one message from each contributor and one to each member.
"""

from typing import NamedTuple

import msgspec

from polyrhythm.core import Cancel, Decision, Decisions, Event, Exchange, Joined, Ledger, Left, Proceed, Report, Sync
from polyrhythm.telemetry.meter import Meter
from polyrhythm.telemetry.result import RunResult
from polyrhythm.telemetry.stragglers import Stragglers


class Mark(msgspec.Struct, frozen=True):
    """Where the job stood when an epoch ended for everyone."""

    time_s: float
    samples: int
    updates: int


class Figures(msgspec.Struct):
    """What a coordinator has measured: a result that knows of no model, and the end of each epoch."""

    result: RunResult
    epochs: list[Mark]


class Running(NamedTuple):
    exchange: Exchange
    since_s: float


class Gauge:
    """Feeds a `Meter`.

    Args:
        stragglers: the view of who is late that it feeds too.

    Example:
        >>> gauge = Gauge()
        >>> gauge.begin_phase(synchronous=False, message_bytes=100)
        >>> gauge.record(Joined((0,), 0.0), (Proceed((0,)),))
        >>> gauge.record(Report(0, 1, 2.0, samples=8, step_s=1.5), (Sync((0,)), Proceed((0,))))
        >>> gauge.meter.bytes_pushed, gauge.meter.bytes_pulled, gauge.meter.activities[0].compute_s
        (100.0, 200.0, 1.5)
    """

    def __init__(self, stragglers: Stragglers | None = None) -> None:
        self.meter = Meter(stragglers=stragglers or Stragglers())
        self.marks: list[Mark] = []
        self._synchronous = False
        self._message_bytes = 0
        self._push_bytes = 0.0
        self._star = False
        self._running: dict[int, Running] = {}
        self._read: dict[int, int] = {}

    def begin_phase(
        self, synchronous: bool, message_bytes: int, push_bytes: float | None = None, star: bool = False
    ) -> None:
        """A policy starts; what the last one left pending was settled without it.

        Args:
            synchronous: whether workers exchange among themselves, not through servers.
            message_bytes: of the parameters or gradients of the whole model.
            push_bytes: of a contribution, if it is compressed.
            star: whether servers sum up replicas, if nothing is compressed.
        """
        self._synchronous, self._message_bytes, self._star = synchronous, message_bytes, star
        self._push_bytes = float(message_bytes) if push_bytes is None else push_bytes
        self._running.clear()
        for worker in self.meter.live:
            self.meter.cancel(worker)

    def record(self, event: Event, decisions: Decisions) -> None:
        match event:
            case Joined(workers=workers, time_s=time_s):
                self.meter.join(workers, time_s)
            case Report():
                self._report(event)
            case Left():
                self._left(event)
        for decision in decisions:
            self._carry_out(decision, event.time_s)

    def lost(self, worker: int, time_s: float) -> None:
        """A worker is gone, whether or not the policy has seen it at that time."""
        if worker in self.meter.live:
            self._abandon(worker, time_s)
            self.meter.leave(worker, time_s)

    def end_epoch(self, mark: Mark) -> None:
        self.marks.append(mark)

    def figures(self, result: RunResult, ledger: Ledger, now: Mark) -> Figures:
        """What was measured up to the last end of an epoch, or up to now if there was none."""
        last = self.marks[-1] if self.marks else now
        self.meter.samples, self.meter.updates = last.samples, last.updates
        return Figures(self.meter.finish(result, ledger, last.time_s), self.marks)

    def _report(self, report: Report) -> None:
        self.meter.report(report, self._running.pop(report.worker).exchange)
        self.meter.bytes_pushed += 0 if self._synchronous else self._push_bytes

    def _left(self, left: Left) -> None:
        """Who is finished has had what it had pending applied, as one update; who is gone has lost it."""
        pending = self.meter.activities[left.worker].pending
        if left.reason != "finished":
            self.lost(left.worker, left.time_s)
        elif pending:
            self.meter.sync(Sync((left.worker,) * len(pending)))
        self._running.pop(left.worker, None)

    def _carry_out(self, decision: Decision, time_s: float) -> None:
        match decision:
            case Sync():
                self.meter.sync(decision)
                if self._synchronous:
                    self._exchange(decision, 1 / decision.fragment[1] if decision.fragment else 1.0)
            case Proceed(workers=workers, exchange=exchange):
                for worker in workers:
                    self._proceed(worker, Running(exchange, time_s))
            case Cancel(workers=workers):
                for worker in workers:
                    self._abandon(worker, time_s)
                    self.meter.cancel(worker)

    def _proceed(self, worker: int, running: Running) -> None:
        """The worker starts a step, and reads the parameters if they have changed since it last did."""
        self._running[worker] = running
        if not self._synchronous and self._read.get(worker) != self.meter.updates:
            self._read[worker] = self.meter.updates
            self.meter.bytes_pulled += self._message_bytes

    def _abandon(self, worker: int, time_s: float) -> None:
        # What a worker computes in vain is computing all the same.
        running = self._running.pop(worker, None)
        if running is not None:
            self.meter.busy(worker, compute_s=time_s - running.since_s)

    def _exchange(self, sync: Sync, part: float) -> None:
        if not self._star or sync.what == "gradients" or self._push_bytes != self._message_bytes:
            self._go_round(part)
            return
        self.meter.bytes_pushed += part * len({*sync.workers}) * self._message_bytes
        self.meter.bytes_pulled += part * len(self.meter.live) * self._message_bytes

    def _go_round(self, part: float) -> None:
        # Half of a ring's traffic reduces, as pushes do, and half gathers, as pulls do; all members take part.
        members, size = len(self.meter.live), float(self._message_bytes)
        if self._push_bytes != self._message_bytes:  # what is compressed is handed round, not summed on the way
            size = self._push_bytes * members / 2
        self.meter.bytes_pushed += part * (members - 1) * size
        self.meter.bytes_pulled += part * (members - 1) * size
