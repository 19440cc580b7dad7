"""Who computed, transferred, waited or worked in vain, and when: read from a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from polyrhythm.core import (
    Cancel,
    Decision,
    Decisions,
    Event,
    Exchange,
    Joined,
    Left,
    Proceed,
    Report,
    Stopped,
    Sync,
    Trace,
)
from polyrhythm.errors import TraceError

SpanKind: TypeAlias = Literal["compute", "transfer", "wait", "lost"]
"""What a worker does; "lost" is a step that was abandoned before its report."""

KINDS: dict[SpanKind, str] = {
    "compute": "computes",
    "transfer": "transfers",
    "wait": "waits",
    "lost": "computes in vain",
}


class Span(NamedTuple):
    """One worker does one thing from `start_s` to `end_s` on the coordinator's clock."""

    worker: int
    kind: SpanKind
    start_s: float
    end_s: float


class Update(NamedTuple):
    time_s: float
    sync: Sync


class TimelineArrival(NamedTuple):
    """A contribution has arrived, so many updates after its read."""

    worker: int
    time_s: float
    staleness: int


@dataclass(frozen=True)
class Timeline:
    """A run as spans, updates and arrivals, each in order of its end.

    A trace knows how long the transfers of a step took together, not when. They are drawn half before and half after
    the computation (read and push), all before it for a step on a replica (the average that it starts from). Time of a
    released worker that was neither is waiting, for the others of its average.
    """

    policy: str
    spans: tuple[Span, ...]
    updates: tuple[Update, ...]
    arrivals: tuple[TimelineArrival, ...]
    end_s: float
    complete: bool = True

    @classmethod
    def of(cls, trace: Trace, complete: bool = True) -> "Timeline":
        scribe = Scribe()
        for event, decisions in trace.entries:
            scribe.write(event, decisions)
        scribe.close()
        end_s = scribe.now_s
        return cls(
            trace.header.policy, tuple(scribe.spans), tuple(scribe.updates), tuple(scribe.arrivals), end_s, complete
        )

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(sorted({span.worker for span in self.spans}))

    def until(self, end_s: float, workers: int | None = None) -> "Timeline":
        """The part before `end_s`, of the first `workers` workers; spans that cross the end are cut."""
        kept = set(self.workers[:workers])
        spans = tuple(
            span._replace(end_s=min(span.end_s, end_s))
            for span in self.spans
            if span.start_s < end_s and span.worker in kept
        )
        updates = tuple(update for update in self.updates if update.time_s <= end_s)
        arrivals = tuple(arrival for arrival in self.arrivals if arrival.time_s <= end_s and arrival.worker in kept)
        complete = self.complete and end_s >= self.end_s and kept == set(self.workers)
        return Timeline(self.policy, spans, updates, arrivals, min(end_s, self.end_s), complete)


def load_timeline(path: str | Path, entries: int | None = None) -> Timeline:
    """The timeline of a trace file, or of its first `entries` entries."""
    if entries is None:
        return Timeline.of(Trace.load(path))
    try:
        with open(path, encoding="utf-8") as lines:
            trace = Trace.parse(islice(lines, entries + 1), str(path))
            return Timeline.of(trace, complete=not lines.readline())
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read trace {str(path)!r}: {error}") from error


def common_window(timelines: Sequence[Timeline], spans: float = inf) -> float:
    """The longest window in which no timeline has more than about `spans` spans, in seconds from the start.

    A timeline that was read in part ends the window where it ends.
    """
    ends = []
    for timeline in timelines:
        ends += [timeline.spans[int(spans)].start_s] if len(timeline.spans) > spans else []
        ends += [] if timeline.complete else [timeline.end_s]
    return min(ends, default=max((timeline.end_s for timeline in timelines), default=0.0))


@dataclass
class Scribe:
    """Turns events and decisions into spans, one at a time."""

    spans: list[Span] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    arrivals: list[TimelineArrival] = field(default_factory=list)
    running: dict[int, tuple[float, Exchange]] = field(default_factory=dict)
    waiting_since: dict[int, float] = field(default_factory=dict)
    now_s: float = 0.0

    def write(self, event: Event, decisions: Decisions) -> None:
        self.now_s = event.time_s
        match event:
            case Joined(workers=workers):
                self.waiting_since.update(dict.fromkeys(workers, event.time_s))
            case Report():
                self.report(event)
            case Left(worker=worker, reason=reason):
                # Who finishes was released to a mini-batch that is not there, maybe after a last average.
                self.abandon(worker, "transfer" if reason == "finished" else "lost")
                self.end_wait(worker)
            case Stopped(worker=worker):
                self.abandon(worker, "lost")
        for decision in decisions:
            self.carry_out(decision)

    def carry_out(self, decision: Decision) -> None:
        match decision:
            case Proceed(workers=workers, exchange=exchange):
                for worker in workers:
                    self.end_wait(worker)
                    self.running[worker] = self.now_s, exchange
            case Cancel(workers=workers):
                for worker in workers:
                    self.abandon(worker, "lost")
            case Sync():
                self.updates.append(Update(self.now_s, decision))

    def report(self, event: Report) -> None:
        released_s, exchange = self.running.pop(event.worker, (None, None))
        if released_s is None:
            raise TraceError(f"worker {event.worker} reports at {event.time_s} s but nobody let it proceed")
        arrived_s = max(released_s, event.time_s - event.wait_s)
        begin_s = max(released_s, arrived_s - event.step_s - event.transfer_s)
        after_s = 0.0 if exchange == "replicas" else event.transfer_s / 2
        computed_s = arrived_s - after_s
        compute_s = max(begin_s, computed_s - event.step_s)
        self.add(event.worker, "wait", released_s, begin_s)
        self.add(event.worker, "transfer", begin_s, compute_s)
        self.add(event.worker, "compute", compute_s, computed_s)
        self.add(event.worker, "transfer", computed_s, arrived_s)
        self.add(event.worker, "wait", arrived_s, event.time_s)
        self.arrivals.append(TimelineArrival(event.worker, event.time_s, event.staleness))
        self.waiting_since[event.worker] = event.time_s

    def abandon(self, worker: int, kind: SpanKind) -> None:
        released_s, _ = self.running.pop(worker, (None, None))
        if released_s is not None:
            self.add(worker, kind, released_s, self.now_s)
            self.waiting_since[worker] = self.now_s

    def end_wait(self, worker: int) -> None:
        self.add(worker, "wait", self.waiting_since.pop(worker, self.now_s), self.now_s)

    def close(self) -> None:
        """The trace ends: who waits has waited until now; a step in flight is left out."""
        for worker in list(self.waiting_since):
            self.end_wait(worker)

    def add(self, worker: int, kind: SpanKind, start_s: float, end_s: float) -> None:
        """A span, unless it is empty (shorter than a rounding error of its times)."""
        if end_s - start_s > 1e-9 * max(1.0, end_s):
            self.spans.append(Span(worker, kind, start_s, end_s))
