"""What a hub writes down about its job: a trace of each phase, and what was measured."""

from pathlib import Path
from typing import Any, TextIO

import msgspec

from polyrhythm.core import Cluster, Decisions, Event, Header, Policy, TraceWriter
from polyrhythm.runtime.hub_settings import HubSettings
from polyrhythm.runtime.job import Job
from polyrhythm.telemetry import Gauge, Mark, RunResult


class Recorder:
    """Writes what the settings ask for, and nothing otherwise.

    Args:
        settings: of the hub; `trace` and `figures` say where to write.
        job: what is recorded.
    """

    def __init__(self, settings: HubSettings, job: Job) -> None:
        self._settings, self._job = settings, job
        self._gauge = Gauge() if settings.figures is not None else None
        self._trace: TextIO | None = None
        self._writer: TraceWriter | None = None

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, message_bytes: int) -> None:
        """Open the phase's trace."""
        if self._gauge is not None:
            self._gauge.begin_phase(policy.traits.venue == "scheduled", message_bytes)
        if self._settings.trace is None:
            return
        self._close_trace()
        folder = Path(self._settings.trace)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._settings.job}-phase-{number}.jsonl"
        self._trace = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._writer = TraceWriter(self._trace, Header(policy.spec, cluster, {"job": self._settings.job}))

    def record(self, event: Event, decisions: Decisions) -> None:
        """One event and what the policy decided."""
        if self._gauge is not None:
            self._gauge.record(event, decisions)
        if self._writer is not None:
            self._writer.write(event, decisions)

    def end_epoch(self, epoch: int) -> None:
        """An epoch is over for everyone; of several calls for one epoch the first counts."""
        if self._gauge is not None and epoch == len(self._gauge.marks):
            self._gauge.end_epoch(self._mark())

    def lost(self, worker: int) -> None:
        """A member of the job is gone; if a policy still sees it, that one's `Left` will tell."""
        if self._gauge is not None and worker not in self._job.ledger.accounts:
            self._gauge.lost(worker, self._job.clock())

    def close(self) -> None:
        """The job is over."""
        self._close_trace()
        settings = self._settings
        if self._gauge is None or settings.figures is None:
            return
        blank = RunResult(
            scenario=settings.job, policy=settings.policy, seed=0, venue="local", workers=settings.workers, batch_size=0
        )
        figures = self._gauge.figures(blank, self._job.ledger, self._mark())
        Path(settings.figures).write_bytes(msgspec.json.encode(figures))

    def _mark(self) -> Mark:
        return Mark(self._job.clock(), self._job.samples, self._job.version)

    def _close_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
